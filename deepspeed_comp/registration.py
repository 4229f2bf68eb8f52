"""What `import gradwire.deepspeed_comp` adds to DeepSpeed: three optimizers, old import paths, a block of ds.json.

Names are added and none is overwritten. No function of DeepSpeed is replaced but one: the constructor of its engine
is wrapped, once, for the block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from ._host import config, engine, has_module
from .backends import CompressedBackend, MpiBackend, NcclBackend
from .old_paths import add_module, add_package
from .options import GradientCompression

__all__ = ["BLOCK", "register"]

#: the key in ds.json
BLOCK = "gradient_compression"
_ONEBIT = "deepspeed.runtime.fp16.onebit"
_COMM = "deepspeed.runtime.comm"
_FILES = {"OneBitAdam": "onebit_adam", "OneBitLamb": "onebit_lamb", "ZeroOneAdam": "zero_one_adam"}
#: the names that DeepSpeed 0.19.6 had
_OLD_NAMES = {"OneBitAdam": "OnebitAdam", "OneBitLamb": "OnebitLamb", "ZeroOneAdam": "ZeroOneAdam"}
_OLD_FILES = {"OneBitAdam": "adam", "OneBitLamb": "lamb", "ZeroOneAdam": "zoadam"}


def register(*, replace: bool = False) -> None:
    """Make old configurations and old imports work; `import gradwire.deepspeed_comp` calls it. May be called again.

    DeepSpeed then finds optimizers by `"type": "OneBitAdam"`, `"OneBitLamb"` and `"ZeroOneAdam"` in any letter case
    and old modules, such as `deepspeed.runtime.fp16.onebit.adam`, by their paths; and it obeys a block
    `gradient_compression` in ds.json. What the installed release still has itself stays as it is.

    Args:
        replace: use gradwire's optimizers and backends also where the release has its own (optimizers up to 0.19.6,
            backends up to 0.19.7), for all that is imported or made from now on.
    """
    classes = _optimizers()
    if replace or not has_module(_ONEBIT):
        _offer(classes)
    add_package(_ONEBIT, {_OLD_NAMES[name]: optimizer for name, optimizer in classes.items()}, replace=replace)
    for name, optimizer in classes.items():
        add_module(f"{_ONEBIT}.{_OLD_FILES[name]}", {_OLD_NAMES[name]: optimizer}, replace=replace)
    for backend in (CompressedBackend, MpiBackend, NcclBackend):
        path = f"{_COMM}.{backend.__name__.removesuffix('Backend').lower()}"
        add_module(path, {backend.__name__: backend}, replace=replace)
    _obey_block()


def _optimizers() -> dict[str, type]:
    there = {name: file for name, file in _FILES.items() if find_spec(f".{file}", __package__)}
    return {name: getattr(import_module(f".{file}", __package__), name) for name, file in there.items()}


def _offer(classes: Mapping[str, type]) -> None:
    """DeepSpeed takes any name that `torch.optim` has; those in its list it lower-cases first."""
    for name, optimizer in classes.items():
        setattr(torch.optim, name, optimizer)
        setattr(torch.optim, name.lower(), optimizer)
        if name.lower() not in config.DEEPSPEED_OPTIMIZERS:
            config.DEEPSPEED_OPTIMIZERS.append(name.lower())  # in place: the engine holds the same list


@cache
def _obey_block() -> None:
    """Once per process, however often it is called."""
    engine.DeepSpeedEngine.__init__ = _obeying(engine.DeepSpeedEngine.__init__)


def _obeying(constructor: Callable[..., None]) -> Callable[..., None]:
    @wraps(constructor)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        constructor(self, *args, **kwargs)
        block = self._config._param_dict.get(BLOCK)
        if block is not None:
            _attach(self, GradientCompression.read(block))

    return wrapped


def _attach(host: object, settings: GradientCompression) -> None:
    attach = import_module(".gradients.attach", __package__).attach
    attach(host, settings.compressor, warmup_steps=settings.warmup_steps, **settings.reducer_options)
