"""DeepSpeed as it is installed here, and the private names of it that registration relies on.

They are checked once, when this module is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from inspect import unwrap
from types import ModuleType

from ..backends.hosts import require_names
from ..compressors.errors import MissingDependencyError

try:
    import deepspeed
    import deepspeed.runtime.config as config  # noqa: PLR0402  (the other form is lost on pyright)
    import deepspeed.runtime.engine as engine  # noqa: PLR0402
except ImportError as error:
    raise MissingDependencyError("deepspeed", "deepspeed", "gradwire.deepspeed_comp") from error

__all__ = [
    "SUPPORTED",
    "TIMEOUT",
    "VERSION",
    "config",
    "deepspeed",
    "engine",
    "has_module",
    "missing",
    "require",
    "unusable",
]

#: seconds that a collective may take, as in torch.distributed: one rank may be busy with a checkpoint
TIMEOUT = 1800.0
#: the releases of DeepSpeed that the private names were checked against
SUPPORTED = ("0.15.4", "0.16.9", "0.17.6", "0.18.2", "0.19.6", "0.19.8")
#: the installed release
VERSION: tuple[int, int, int] = (
    int(deepspeed.__version_major__),
    int(deepspeed.__version_minor__),
    int(deepspeed.__version_patch__),
)


def has_module(name: str) -> bool:
    """Whether a module can be found, without importing it (its parent packages are)."""
    parent = name.rpartition(".")[0]
    return (not parent or has_module(parent)) and find_spec(name) is not None


def missing(owner: object, place: str, names: Iterable[str]) -> list[str]:
    """The full names of what `owner`, which is found at `place`, does not have."""
    return [f"{place}.{name}" for name in names if not hasattr(owner, name)]


def require(missing: Iterable[str]) -> None:
    """Refuse a DeepSpeed that lacks some of the names.

    Raises:
        UnsupportedError: something is missing; the text names it, the version found and the versions supported.
    """
    require_names("DeepSpeed", deepspeed.__version__, SUPPORTED, missing)


def unusable(config: ModuleType, engine: ModuleType) -> list[str]:
    """What registration needs of `deepspeed.runtime.config` and `deepspeed.runtime.engine` and does not find there."""
    lacking = missing(config, "deepspeed.runtime.config", ["DEEPSPEED_OPTIMIZERS", "DeepSpeedConfig"])
    lacking += missing(engine, "deepspeed.runtime.engine", ["DEEPSPEED_OPTIMIZERS", "DeepSpeedEngine"])
    if lacking:
        return lacking
    names = config.DEEPSPEED_OPTIMIZERS
    if not isinstance(names, list) or names is not engine.DEEPSPEED_OPTIMIZERS:
        lacking.append("one list DEEPSPEED_OPTIMIZERS for deepspeed.runtime.config and deepspeed.runtime.engine")
    place = "deepspeed.runtime.engine.DeepSpeedEngine"
    methods = ("_is_supported_optimizer", "_configure_basic_optimizer", "optimizer_name", "optimizer_params")
    lacking += missing(engine.DeepSpeedEngine, place, methods)
    lacking += _unset(engine.DeepSpeedEngine, place, "_config")
    return lacking + _unset(config.DeepSpeedConfig, "deepspeed.runtime.config.DeepSpeedConfig", "_param_dict")


def _unset(owner: type, place: str, name: str) -> list[str]:
    """Whether the constructor sets an attribute: there is no object to look at yet."""
    code = getattr(unwrap(owner.__init__), "__code__", None)
    return [] if code is not None and name in code.co_names else [f"{place}.{name}"]


require(unusable(config, engine))
