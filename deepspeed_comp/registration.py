"""What `import gradwire.deepspeed_comp` adds to DeepSpeed: three optimizers, old import paths, a block of ds.json.

Names are added and none is overwritten. No function of DeepSpeed is replaced but one: the constructor of its engine
is wrapped, once, for the block, and so that an optimizer which a script has made meets its engine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from typing import Any

import torch

from ._host import config, engine, has_module
from .backends import CompressedBackend, MpiBackend, NcclBackend
from .gradients import attach, comparing_models
from .gradients.refusals import LOCO
from .momentum import MomentumOptimizer
from .old_paths import add_module, add_package
from .onebit_adam import OneBitAdam
from .onebit_lamb import OneBitLamb
from .options import GradientCompression
from .zero_one_adam import ZeroOneAdam

__all__ = ["BLOCK", "register"]

#: the key in ds.json
BLOCK = "gradient_compression"
_ONEBIT = "deepspeed.runtime.fp16.onebit"
_OPTIMIZERS = (OneBitAdam, OneBitLamb, ZeroOneAdam)
#: module -> the names that it had in DeepSpeed 0.19.6
_OPTIMIZER_MODULES: dict[str, dict[str, object]] = {
    f"{_ONEBIT}.adam": {"OnebitAdam": OneBitAdam},
    f"{_ONEBIT}.lamb": {"OnebitLamb": OneBitLamb},
    f"{_ONEBIT}.zoadam": {"ZeroOneAdam": ZeroOneAdam},
}
_BACKEND_MODULES: dict[str, dict[str, object]] = {
    "deepspeed.runtime.comm.compressed": {"CompressedBackend": CompressedBackend},
    "deepspeed.runtime.comm.mpi": {"MpiBackend": MpiBackend},
    "deepspeed.runtime.comm.nccl": {"NcclBackend": NcclBackend},
}


def register(*, replace: bool = False) -> None:
    """Make old configurations and old imports work; `import gradwire.deepspeed_comp` calls it. May be called again.

    DeepSpeed then finds optimizers by `"type": "OneBitAdam"`, `"OneBitLamb"` and `"ZeroOneAdam"` in any letter case
    and old modules, such as `deepspeed.runtime.fp16.onebit.adam`, by their paths; and it obeys a block
    `gradient_compression` in ds.json. Where it refuses LoCo's old key, it also says what takes its place. What the
    installed release still has itself stays as it is.

    Args:
        replace: use gradwire's optimizers and backends also where the release has its own (optimizers up to 0.19.6,
            backends up to 0.19.7), for all that is imported or made from now on.
    """
    if replace or not has_module(_ONEBIT):
        _offer()
    every = {name: optimizer for names in _OPTIMIZER_MODULES.values() for name, optimizer in names.items()}
    add_package(_ONEBIT, every, replace=replace)
    for path, names in {**_OPTIMIZER_MODULES, **_BACKEND_MODULES}.items():
        add_module(path, names, replace=replace)
    _explain_loco()
    _obey_block()


def _offer() -> None:
    """DeepSpeed takes any name that `torch.optim` has; those in its list it lower-cases first."""
    for optimizer in _OPTIMIZERS:
        name = optimizer.__name__
        setattr(torch.optim, name, optimizer)
        setattr(torch.optim, name.lower(), optimizer)
        if name.lower() not in config.DEEPSPEED_OPTIMIZERS:
            config.DEEPSPEED_OPTIMIZERS.append(name.lower())  # in place: the engine holds the same list


@cache
def _explain_loco() -> None:
    """Since 0.19.8 DeepSpeed refuses the key itself, with a text that it looks up."""
    texts: dict[str, str] = getattr(config, "_REMOVED_ZERO_CONFIG_KEYS", {})
    if "zeropp_loco_param" in texts:
        texts["zeropp_loco_param"] += f" With gradwire, {LOCO}."


@cache
def _obey_block() -> None:
    """Once per process, however often it is called."""
    engine.DeepSpeedEngine.__init__ = _obeying(engine.DeepSpeedEngine.__init__)


def _obeying(constructor: Callable[..., None]) -> Callable[..., None]:
    @wraps(constructor)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        with _comparing(self, kwargs.get("config_class")):
            constructor(self, *args, **kwargs)
        optimizer = getattr(self, "basic_optimizer", None)
        if isinstance(optimizer, MomentumOptimizer):
            optimizer.meet(self)  # it was made before its engine, unless ds.json names it
        block = self._config._param_dict.get(BLOCK)
        if block is not None:
            _attach(self, GradientCompression.read(block))

    return wrapped


def _comparing(host: object, settings: Any) -> AbstractContextManager[None]:
    """With a block, differences between ranks show before DeepSpeed trips over them."""
    block = getattr(settings, "_param_dict", {}).get(BLOCK)
    if block is None:
        return nullcontext()
    return comparing_models(host, GradientCompression.read(block).timeout)


def _attach(host: object, settings: GradientCompression) -> None:
    attach(host, settings.compressor, warmup_steps=settings.warmup_steps, **settings.reducer_options)
