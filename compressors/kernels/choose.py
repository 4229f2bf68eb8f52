"""Which form of a kernel runs: the native one for tensors that it takes, else the one in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from . import native
from .feed import Feed

__all__ = ["either", "form_on", "native_is_used", "reference_only"]

P = ParamSpec("P")
R = TypeVar("R")

#: what native kernels take first: gradients, payloads
_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.uint8})

_use_native = native.available()


def native_is_used() -> bool:
    """Whether native kernels run where they can."""
    return _use_native


def form_on(device: torch.device) -> str:
    """Which kernels run there: native or reference."""
    return "native" if _use_native and device.type == "cpu" else "reference"


@contextmanager
def reference_only(active: bool = True) -> Iterator[None]:
    """In this block all kernels of the process are those in plain torch; for measurements and tests."""
    global _use_native  # noqa: PLW0603 - read by every call: anything slower would show
    before, _use_native = _use_native, _use_native and not active
    try:
        yield
    finally:
        _use_native = before


def either(slow: Callable[P, R], fast: Callable[..., R]) -> Callable[P, R]:
    """A kernel that takes the fast form where that takes its first argument, a feed or a tensor, or a plain number."""
    if not native.available():
        return slow

    @wraps(slow)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        tensor = first.x if type(first) is Feed else first
        takes = not isinstance(tensor, torch.Tensor) or (tensor.is_cpu and tensor.dtype in _DTYPES)
        return fast(*args, **kwargs) if _use_native and takes else slow(*args, **kwargs)

    return kernel
