"""Gradients that are finite, and whose norm is not: all ranks hear of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

__all__ = ["LARGEST", "agree_on_norms"]

#: of a norm: its square is far below fp32's largest number
LARGEST = 1e18

_ATTRIBUTE = "_gradwire_agrees_on_norms"


def agree_on_norms(engine: Any) -> None:
    """Have DeepSpeed's 16-bit wrapper count a gradient of infinite norm as one that is not finite.

    The wrapper asks all ranks whether a gradient is not finite, and then looks at the norm of its own ones. While it
    averages gradients, norms are equal on all ranks. Once momenta are averaged they are not: a rank whose norm
    overflows would skip the step alone, and the others would wait for it.
    """
    checker = getattr(getattr(engine, "optimizer", None), "overflow_checker", None)
    if checker is not None and not hasattr(checker, _ATTRIBUTE):
        checker.has_overflow_serial = _heeding_norms(checker.has_overflow_serial)
        setattr(checker, _ATTRIBUTE, True)


def _heeding_norms(method: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(method)
    def has_overflow_serial(params: Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> bool:
        params = list(params)
        return method(params, *args, **kwargs) or not _norm(params) <= LARGEST

    return has_overflow_serial


def _norm(params: Iterable[torch.Tensor]) -> float:
    grads = [param.grad for param in params if param.grad is not None]
    norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in grads]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
