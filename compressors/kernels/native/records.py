"""What goes into the records of `library`: pointers to tensors that are what they must be, or memory would suffer."""

from __future__ import annotations

from functools import lru_cache
from typing import NoReturn

import torch

from ...errors import UsageError
from .. import layout
from ..feed import Feed
from ..layout import INT4, SCALE_BYTES, Grid, blocks_of, indices_of

__all__ = [
    "DTYPES",
    "expect",
    "expect_bytes",
    "fields",
    "levels_bytes",
    "misfit",
    "places",
    "sign_bytes",
    "two_bit_bytes",
]

_F32 = torch.float32
#: their numbers in the library
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def fields(feed: Feed) -> tuple[tuple[int, int, int, int, float, int], int]:
    """What a record says about what is encoded; and how many elements."""
    x, residual, decay, rest = feed
    n, old, new = x.numel(), 0, 0
    if residual is not None:
        if residual.numel() != n or residual.dtype is not _F32 or not residual.is_cpu or not residual.is_contiguous():
            misfit(residual, n)
        old = residual.data_ptr()
    if rest is not None:
        if rest.numel() != n or rest.dtype is not _F32 or not rest.is_cpu:
            misfit(rest, n)
        new = rest.data_ptr()
    return (x.data_ptr(), old, new, n, decay, DTYPES[x.dtype]), n


@lru_cache(maxsize=4096)
def sign_bytes(n: int, block: int) -> int:
    """The size of a payload of bits."""
    if block < 1 or (block % 8 and block < n):
        raise UsageError(f"block is {block}, expected a multiple of 8, or at least all {n} elements")
    return SCALE_BYTES * blocks_of(n, block) + (n + 7) // 8


@lru_cache(maxsize=4096)
def levels_bytes(n: int, block: int, grid: Grid) -> int:
    """The size of a payload of levels."""
    if block < 1 or (grid is INT4 and block % 2 and block < n):
        raise UsageError(
            f"block is {block}, expected at least 1; for int4 an even number, or at least all {n} elements"
        )
    return layout.levels_bytes(n, block, grid)


@lru_cache(maxsize=4096)
def two_bit_bytes(n: int, block: int) -> int:
    """The size of a payload of codes of 2 bits."""
    if block < 1 or (block % 4 and block < n):
        raise UsageError(f"block is {block}, expected a multiple of 4, or at least all {n} elements")
    return layout.two_bit_bytes(n, block)


@lru_cache(maxsize=4096)
def places(n: int, k: int, exact: bool = True) -> tuple[int, int]:
    """Bytes of an offset, and of all places."""
    if not 1 <= k <= n:
        raise UsageError(f"k is {k}, expected 1 to {n}")
    form = indices_of(n, k, exact)
    return form.width // 8, form.nbytes


def expect(tensor: torch.Tensor, n: int, dtype: torch.dtype = _F32) -> None:
    """Refuse what the library would read or write beyond its end. Compressors see to it that vectors are contiguous."""
    if tensor.numel() != n or tensor.dtype is not dtype or not tensor.is_cpu:
        misfit(tensor, n, dtype)


def expect_bytes(payload: torch.Tensor, n: int) -> None:
    if payload.numel() < n or payload.dtype is not torch.uint8 or not payload.is_cpu:
        misfit(payload, n, torch.uint8)


def misfit(tensor: torch.Tensor, n: int, dtype: torch.dtype = _F32) -> NoReturn:
    raise UsageError(
        f"a tensor has {tensor.numel()} elements of {tensor.dtype} with strides {tensor.stride()} on {tensor.device}, "
        f"expected {n} of {dtype}, contiguous, on the CPU"
    )
