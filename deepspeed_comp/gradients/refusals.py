"""What compression of gradients does not go together with, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...compressors.errors import ConfigError, UsageError

__all__ = ["LOCO", "refuse_unsuitable"]

#: what takes the place of DeepSpeed's `zeropp_loco_param`
LOCO = (
    "error feedback for compressed gradients is gradwire's now: leave out zeropp_loco_param and "
    'zero_quantized_gradients, and write "gradient_compression": {"type": "int8"} at the top of ds.json'
)
#: optimizers that compress momenta: gradwire's, and those of DeepSpeed before 0.19.7
MOMENTUM = {"OneBitAdam", "OneBitLamb", "OnebitAdam", "OnebitLamb", "ZeroOneAdam"}


def refuse_unsuitable(engine: Any) -> None:
    """Refuse an engine whose gradients are averaged by means that gradwire does not follow.

    Raises:
        UsageError: the engine has no optimizer.
        ConfigError: a setting excludes compression; the text says what to do.
    """
    if engine.optimizer is None or engine.basic_optimizer is None:
        raise UsageError("this engine has no optimizer, so it averages no gradients: give deepspeed.initialize() one")
    for applies, text in RULES:
        if applies(engine):
            raise ConfigError(f"gradients cannot be compressed here: {text}")


def _zero(key: str) -> Callable[[Any], bool]:
    """Whether a key of `zero_optimization` is there and set."""
    return lambda engine: bool(getattr(engine._config.zero_config, key, None))


def _deepcompile(engine: Any) -> bool:
    return bool(getattr(getattr(engine._config, "compile_config", None), "deepcompile", False))


def _super_offload(engine: Any) -> bool:
    return bool(getattr(engine._config.zero_config.offload_optimizer, "super_offload", False))


def _muon(engine: Any) -> bool:
    return any(
        base.__module__.startswith("deepspeed.runtime.zero.muon") for base in type(engine.basic_optimizer).__mro__
    )


def _momentum(engine: Any) -> bool:
    return any(base.__name__ in MOMENTUM for base in type(engine.basic_optimizer).__mro__)


def _mics(engine: Any) -> bool:
    return getattr(engine._config, "mics_shard_size", -1) > 0


def _moe(engine: Any) -> bool:
    return bool(getattr(engine, "has_moe_layers", False))


def _grad_scaler(engine: Any) -> bool:
    """DeepSpeed then leaves it to torch to skip steps, and does not count them."""
    return getattr(engine._config, "torch_autocast_dtype", None) == torch.float16 and engine.torch_autocast_enabled()


#: what excludes compression, and how the text goes on
RULES: list[tuple[Callable[[Any], bool], str]] = [
    (
        _deepcompile,
        "DeepCompile averages gradients inside of the compiled graph, where nobody else comes in; set "
        "compile.deepcompile to false",
    ),
    (
        _zero("zenflow"),
        "ZenFlow averages a selection of gradients at times of its own; leave out zero_optimization.zenflow",
    ),
    (
        _super_offload,
        "SuperOffload updates parameters before it is known whether the step counts; leave out super_offload in "
        "zero_optimization.offload_optimizer",
    ),
    (
        _muon,
        "DeepSpeed's Muon orthogonalizes gradients while they are averaged; use another optimizer, such as "
        '"type": "AdamW"',
    ),
    (
        _momentum,
        "the optimizer compresses its momenta already, and takes gradients that are not averaged; use "
        '"type": "Adam", or leave the gradient_compression out',
    ),
    (_zero("zeropp_loco_param"), f"LoCo compresses them already, and {LOCO}"),
    (
        _zero("zero_quantized_gradients"),
        "ZeRO++ quantizes them already, without error feedback; leave out zero_optimization.zero_quantized_gradients",
    ),
    (_mics, "MiCS averages them in two steps over parts of the ranks; leave out zero_optimization.mics_shard_size"),
    (
        _moe,
        "experts of a mixture are averaged over other ranks than the rest of the model, which is not supported yet; "
        "detach() or leave the gradient_compression out",
    ),
    (
        _grad_scaler,
        "torch_autocast with float16 skips steps without telling; use dtype bfloat16, or the fp16 block",
    ),
]
