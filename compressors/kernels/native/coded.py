"""The largest elements, with values that are cast, or written in blocks."""

from __future__ import annotations

import torch

from .. import reference
from ..feed import Feed
from ..layout import Coding, Grid
from .entry import done, entry, refused, threads_for
from .records import DTYPES, expect, expect_bytes, fields, places

__all__ = ["coded_decode_add", "coded_encode"]

_coded_decode_add = entry("coded_decode_add")
_coded_encode = entry("coded_encode")
_CAST, _LEVELS, _TWO_BITS = range(3)


def coded_encode(
    feed: Feed, k: int, payload: torch.Tensor, coding: Coding, exact: bool = True, threads: int | None = None
) -> int:
    what, n = fields(feed)
    width, nbytes = places(n, k, exact)
    end = nbytes + coding.nbytes(k)
    expect_bytes(payload, end)
    where = payload.data_ptr()
    to = where, n, k, width, exact, where + nbytes, where + end, threads or threads_for(n)
    status = _coded_encode(*what, *to, *_numbers(coding))
    if status < 0:
        done(status)
    return status


def coded_decode_add(
    payload: torch.Tensor,
    k: int,
    coding: Coding,
    out: torch.Tensor,
    weight: float,
    exact: bool = True,
    threads: int | None = None,
) -> None:
    n = out.numel()
    width, nbytes = places(n, k, exact)
    expect(out, n)
    expect_bytes(payload, nbytes + coding.nbytes(k))
    where = payload.data_ptr()
    to = where + nbytes, out.data_ptr(), weight, threads or threads_for(n)
    if status := _coded_decode_add(where, n, k, width, exact, *to, *_numbers(coding)):
        refused(status, reference.coded_decode_add, payload, k, coding, out, weight, exact)


def _numbers(coding: Coding) -> tuple[int, int, int, int, bool]:
    """As csrc/coded.cpp has them: block, seed, kind, which of that kind, and whether levels are rounded at random."""
    to, block, seed = coding
    if to is None:
        return block, 0, _TWO_BITS, 0, False
    if isinstance(to, Grid):
        return block, seed or 0, _LEVELS, to.number, seed is not None
    return 1, 0, _CAST, DTYPES[to], False
