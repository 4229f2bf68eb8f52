"""All elements: sums with the residual, checks, copies and casts to 16 bits."""

from __future__ import annotations

import torch

from .. import reference
from ..feed import Feed
from .entry import entry, threads_for
from .records import DTYPES, expect, fields, misfit

__all__ = ["all_finite", "cast_decode_add", "cast_encode", "copy", "total", "zero"]

_all_finite = entry("all_finite")
_cast_decode_add = entry("cast_decode_add")
_cast_encode = entry("cast_encode")
_copy = entry("copy")
_total = entry("total")
_zero = entry("zero")


def all_finite(x: torch.Tensor, threads: int | None = None) -> bool:
    n = x.numel()
    return not _all_finite(x.data_ptr(), n, DTYPES[x.dtype], threads or threads_for(n))


def copy(x: torch.Tensor, out: torch.Tensor, threads: int | None = None) -> bool:
    n, dtype = x.numel(), x.dtype
    expect(out, n, out.dtype)
    if out.dtype is not dtype:  # the mean of 16-bit gradients, encoded for a second phase
        return reference.copy(x, out)
    return not _copy(x.data_ptr(), out.data_ptr(), n, DTYPES[dtype], threads or threads_for(n))


def total(feed: Feed, threads: int | None = None) -> tuple[torch.Tensor, bool]:
    out = torch.empty(feed.x.numel()) if feed.rest is None else feed.rest
    what, n = fields(feed._replace(rest=out))
    return out, not _total(*what, threads or threads_for(n))


def zero(out: torch.Tensor, threads: int | None = None) -> None:
    n = out.numel()
    expect(out, n)
    _zero(out.data_ptr(), n, threads or threads_for(n))


def cast_encode(feed: Feed, divisor: float, out: torch.Tensor, threads: int | None = None) -> int:
    what, n = fields(feed)
    dtype = DTYPES[out.dtype]
    if out.numel() != n or not dtype:
        misfit(out, n, torch.float16)
    return _cast_encode(*what, out.data_ptr(), divisor, dtype, threads or threads_for(n))


def cast_decode_add(
    values: torch.Tensor, out: torch.Tensor, weight: float, threads: int | None = None, *, fresh: bool = False
) -> None:
    n, dtype = out.numel(), values.dtype
    expect(out, n)
    expect(values, n, dtype)
    _cast_decode_add(values.data_ptr(), out.data_ptr(), n, weight, threads or threads_for(n), fresh, DTYPES[dtype])
