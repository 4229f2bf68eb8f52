"""Which form of a kernel runs: native on the CPU, Triton on a GPU, and plain torch for what neither takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import torch

from . import native
from .feed import Feed

__all__ = ["either", "form_on", "reference_only"]

P = ParamSpec("P")
R = TypeVar("R")

#: what fast kernels take first: gradients, payloads
_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.uint8})

_fast = True
_native = native.available()


def form_on(device: torch.device) -> str:
    """Which kernels run there: native, triton or reference."""
    if not _fast:
        return "reference"
    if device.type == "cpu":
        return "native" if _native else "reference"
    return "triton" if device.type == "cuda" and _triton() else "reference"


@contextmanager
def reference_only(active: bool = True) -> Iterator[None]:
    """In this block all kernels of the process are those in plain torch; for measurements and tests."""
    global _fast  # noqa: PLW0603 - read by every call: anything slower would show
    before, _fast = _fast, _fast and not active
    try:
        yield
    finally:
        _fast = before


def either(slow: Callable[P, R], fast: Callable[..., R]) -> Callable[P, R]:
    """A kernel that looks at its first argument, a feed, a tensor or a plain number, and takes the form that suits."""

    @wraps(slow)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        tensor = first.x if type(first) is Feed else first
        if not isinstance(tensor, torch.Tensor):
            return fast(*args, **kwargs) if _fast and _native else slow(*args, **kwargs)
        if not _fast or tensor.dtype not in _DTYPES:
            return slow(*args, **kwargs)
        if tensor.is_cpu:
            return fast(*args, **kwargs) if _native else slow(*args, **kwargs)
        return _elsewhere(tensor.device, slow)(*args, **kwargs)

    return kernel


def _elsewhere(device: torch.device, slow: Callable[..., Any]) -> Callable[..., Any]:
    """The form for another device than the CPU."""
    return getattr(_triton(), slow.__name__, slow) if form_on(device) == "triton" else slow


@cache
def _triton() -> ModuleType | None:
    """The kernels in Triton, which PyTorch's builds for GPUs bring along."""
    if find_spec("triton") is None:
        return None
    from . import triton

    return triton
