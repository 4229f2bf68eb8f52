"""What goes into the records of `library`: pointers to tensors that are what they must be, or memory would suffer."""

from __future__ import annotations

from functools import lru_cache
from typing import NoReturn

import torch

from ...errors import UsageError
from ..feed import Feed
from ..layout import indices_of

__all__ = ["DTYPES", "expect", "expect_bytes", "fields", "misfit", "places"]

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
