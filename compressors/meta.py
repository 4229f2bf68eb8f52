"""What every rank knows about a tensor, and which tensors can be compressed at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from .errors import UnsupportedError

__all__ = ["Context", "SUPPORTED", "TensorMeta", "check_dtype"]

#: dtypes of gradients
SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, kw_only=True)
class TensorMeta:
    """What every rank knows about a tensor; equal on all ranks.

    Attributes:
        name: the parameter's name; states are keyed by it.
        shape: the gradient's shape, `()` for a scalar.
        dtype: the gradient's dtype; decoded tensors come back in it.
        summands: how many payloads the wire adds up before they are decoded (the world size under an
            all-reduce, else 1). Casts to a narrow range divide by it beforehand.

    Raises:
        UnsupportedError: no codec takes this dtype; so it is refused as early as tensors are registered.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    summands: int = 1

    def __post_init__(self) -> None:
        check_dtype(self.name, self.dtype)

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def raw_bytes(self) -> int:
        """Bytes of the uncompressed gradient."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where and when a tensor is compressed.

    Attributes:
        meta: the tensor.
        step: number of applied steps so far.
        rank: this rank within its group; only per-rank randomness may depend on it.
        seed: the base seed, equal on all ranks.
    """

    meta: TensorMeta
    step: int = 0
    rank: int = 0
    seed: int = 0


def check_dtype(name: str, dtype: torch.dtype) -> None:
    """Refuse what no codec takes: 8-bit floats, complex numbers, whole numbers.

    Raises:
        UnsupportedError: `dtype` is not in `SUPPORTED`.
    """
    if dtype not in SUPPORTED:
        raise UnsupportedError(
            f"{name}: gradients of {dtype} cannot be compressed, only {', '.join(map(str, SUPPORTED))}; "
            f"cast to one of these first (`gradient.float()`), or exchange this tensor without gradwire"
        )
