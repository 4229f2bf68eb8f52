"""What the functions of the library have in common: the library itself, threads, and what a status means."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch

from ...errors import UsageError
from .library import ISAS, Entry, load

__all__ = ["REFUSED", "available", "done", "entry", "isa", "refused", "threads_for", "why_not"]

#: fewer elements are not worth a second thread
_FEW = 1 << 21
#: the library takes no more
_MOST_THREADS = 64
REFUSED, _NO_MEMORY, _OVERLAP = -2, -3, -4

_loaded = load()


def available() -> bool:
    """Whether the library is there; without it no kernel here can be called."""
    return bool(_loaded.entries)


def why_not() -> str:
    """Why it is not, and what to do about it."""
    return _loaded.why_not


def isa() -> str:
    """The form that runs: avx512, avx2 or plain."""
    return ISAS[entry("isa")()]


def entry(name: str) -> Entry:
    """An entry point of the library."""

    def absent(*_: object) -> NoReturn:
        raise UsageError(f"the native kernels are {why_not()}")

    return _loaded.entries.get(name, absent)


def threads_for(n: int) -> int:
    """How many threads work on so many elements, unless the caller says."""
    return min(torch.get_num_threads(), _MOST_THREADS) if n >= _FEW else 1


def done(status: int) -> bool:
    """Whether what an encoder was fed with is finite."""
    if status == _NO_MEMORY:
        raise MemoryError("no memory for the scratch space of a kernel")
    return not status


def refused(status: int, reference_function: Callable[..., object], payload: torch.Tensor, *args: object) -> NoReturn:
    """Raise what the reference finds wrong with a payload; it writes nothing, as the library did not."""
    if status == _OVERLAP:
        raise UsageError("the payload and what is written to share memory; give one of them memory of its own")
    reference_function(payload.clone(), *args)  # at an address that it can take
    raise AssertionError(f"the native form of {reference_function.__name__} refused what the reference accepts")
