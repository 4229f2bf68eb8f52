"""Running totals over all programs' counts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launching import TILE, launch

__all__ = ["accumulate"]


def accumulate(counts: torch.Tensor) -> None:
    """Replace the entries of each row by the sum of those before them. The last entry of a row counts as 0.

    Args:
        counts: int64, 2-D.
    """
    launch(_accumulate, counts.shape[0], counts, counts.shape[1], TILE=TILE)


@triton.jit(do_not_specialize=["length"])
def _accumulate(counts: tl.tensor, length: tl.tensor, TILE: tl.constexpr) -> None:
    row = counts + tl.program_id(0).to(tl.int64) * length
    before = tl.full((), 0, tl.int64)
    for start in range(0, length, TILE):
        at = start + tl.arange(0, TILE)
        here = tl.load(row + at, mask=at < length - 1, other=0)
        tl.store(row + at, before + tl.cumsum(here, axis=0) - here, mask=at < length)
        before += tl.sum(here, axis=0)
