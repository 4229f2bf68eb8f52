"""The threshold of the k largest magnitudes among few elements: one program finds it, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..feed import Feed
from .dense import unsettled_rest
from .launching import TILE, finite_flag, launch
from .select import magnitude
from .source import feed_at, note_spoilt, span

__all__ = ["threshold_of_few"]


def threshold_of_few(feed: Feed, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `select.threshold`, for at most `TILE` elements.

    Returns:
        The state; how many elements exceed the threshold, and how many equal it: running totals of one span
        (int64 [2, 2]); and whether the sum is finite: bool, 0-dim.
    """
    x, residual, decay, _ = feed
    finite = finite_flag(x)
    state = torch.empty(2, dtype=torch.int64, device=x.device)
    before = torch.empty((2, 2), dtype=torch.int64, device=x.device)
    launch(_select, 1, x, residual, decay, unsettled_rest(feed), state, before, finite, x.numel(), k, TILE=TILE)
    return state, before, finite


@triton.jit(do_not_specialize=["k"])
def _select(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    rest: tl.tensor,
    state: tl.tensor,
    before: tl.tensor,
    finite: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """The largest number that k magnitudes reach, bit by bit; also rest = p."""
    at, mask = span(n, TILE)
    p = feed_at(x, residual, decay, at, mask)
    note_spoilt(finite, p, mask)
    if rest is not None:
        tl.store(rest + at, p, mask=mask)
    size = tl.where(mask, magnitude(p), -1)
    limit = tl.full((), 0, tl.int32)
    for step in range(31):
        higher = limit | (1 << (30 - step))
        reach = tl.sum((size >= higher).to(tl.int32), axis=0)
        limit = tl.where(reach >= k, higher, limit)
    above = tl.sum((size > limit).to(tl.int32), axis=0)
    equal = tl.sum((size == limit).to(tl.int32), axis=0)
    tl.store(state, limit.to(tl.int64))
    tl.store(state + 1, (k - above).to(tl.int64))
    tl.store(before, tl.full((), 0, tl.int64))
    tl.store(before + 1, above.to(tl.int64))
    tl.store(before + 2, tl.full((), 0, tl.int64))
    tl.store(before + 3, equal.to(tl.int64))
