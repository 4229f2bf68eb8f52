"""The rows of `gradwire bench step` that are DeepSpeed's: engines at ZeRO stages 0 and 2, and ours at stage 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ...compressors import parse_spec
from ...compressors.errors import UsageError
from .names import OFF, OURS, Name
from .systems import Row

__all__ = ["make", "start"]


def start() -> None:
    """Over the process group that is there; quietly."""
    import logging

    import deepspeed
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # takes minutes to compile, and is for inference
    deepspeed.init_distributed("gloo", verbose=False)


def make(name: Name, model: nn.Module, optimizer: torch.optim.Optimizer, timeout: float) -> Row:
    """An engine; "no communication" is one at stage 0, whose gradients stay where they are."""
    stage = 2 if name.system.endswith("ZeRO 2") else 0
    engine = _engine(model, optimizer, stage)
    row = Row(name=name, model=model, forward=engine, backward=engine.backward, update=engine.step, early=True)
    if stage:
        row.mean = _gathered
    if name.compressor == OFF:
        row.backward = partial(_without_sync, engine)
    elif name.is_ours:
        from ...deepspeed_comp import attach

        attachment = attach(engine, parse_spec(OURS[name.compressor]), timeout=timeout)
        row.owed = partial(_owed, attachment, dict(model.named_parameters()))
        row.statistics = lambda: attachment.statistics
    return row


def _engine(model: nn.Module, optimizer: torch.optim.Optimizer, stage: int) -> Any:
    import deepspeed

    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "steps_per_print": 1 << 30,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage},
    }
    with _without_broadcast():
        return deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]


@contextmanager
def _without_broadcast() -> Iterator[None]:
    """All ranks have the same values already, and many engines' would be minutes on a slow link."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    own = DeepSpeedEngine._broadcast_model
    DeepSpeedEngine._broadcast_model = lambda self: None
    try:
        yield
    finally:
        DeepSpeedEngine._broadcast_model = own


def _without_sync(engine: Any, loss: torch.Tensor) -> None:
    with engine.no_sync():
        engine.backward(loss)


def _gathered(parameter: nn.Parameter) -> torch.Tensor:
    """Put together of what the ranks hold of it."""
    from deepspeed.utils import safe_get_full_grad

    gradient = safe_get_full_grad(parameter)
    if gradient is None:
        raise RuntimeError(f"DeepSpeed has no gradient for a parameter of shape {tuple(parameter.shape)}")
    return gradient


def _owed(attachment: Any, parameters: dict[str, nn.Parameter], name: str) -> torch.Tensor:
    try:
        return attachment.pending(name)
    except UsageError:  # it travels dense
        return torch.zeros_like(parameters[name])
