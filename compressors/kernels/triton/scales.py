"""What a block's scale is made of, and how it is found: within a tile, or in pieces where the block is long."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..feed import Feed
from .launching import launch
from .source import feed_at, note_spoilt
from .tiles import Tiles, tile

__all__ = ["PARTS", "Rule", "measure", "scale_of", "statistic"]

#: pieces that are added up at a time
PARTS = 1024


class Rule(NamedTuple):
    """What a scale is.

    Attributes:
        order: 1 for the mean magnitude, 2 for the root mean square; 0 for the largest magnitude / `most`.
        most: the largest level.
        largest: so large may a scale be, if `order` is 0.
        least: what is not larger becomes 0; the reciprocal of a denormal number would be inf.
    """

    order: int
    most: float = 1.0
    largest: float = 1.0
    least: float = 2.0**-126


def measure(feed: Feed, tiles: Tiles, rule: Rule, scales: torch.Tensor, finite: torch.Tensor) -> None:
    """Scales of blocks that are cut into pieces. Sums are formed per piece, and added in order: all in fp64."""
    x, residual, decay, _ = feed
    parts = torch.empty(tiles.blocks * tiles.pieces, dtype=torch.float64, device=x.device)
    tiles.launch(_measure, x, residual, decay, parts, finite, ORDER=rule.order)
    shape = (tiles.numel, tiles.block, tiles.pieces)
    launch(_combine, tiles.blocks, parts, scales, *shape, *rule[1:], ORDER=rule.order, PARTS=PARTS)


@triton.jit
def statistic(p: tl.tensor, ORDER: tl.constexpr) -> tl.tensor:
    """Of a tile [ROWS, COLS / GROUP, GROUP], for each row, in fp64: its largest magnitude, or its sum of powers."""
    size = tl.abs(p)
    if ORDER == 0:
        found = tl.max(tl.max(size, axis=2), axis=1).to(tl.float64)
    else:
        power = size.to(tl.float64) if ORDER == 1 else size.to(tl.float64) * size.to(tl.float64)
        found = tl.sum(tl.sum(power, axis=2), axis=1)
    return found


@triton.jit
def scale_of(
    found: tl.tensor, count: tl.tensor, most: tl.tensor, largest: tl.tensor, least: tl.tensor, ORDER: tl.constexpr
) -> tl.tensor:
    """The scale of so many elements with this statistic, by a `Rule`."""
    if ORDER == 0:
        scale = tl.minimum(tl.div_rn(found.to(tl.float32), most), largest)
    elif ORDER == 1:
        scale = (found / count.to(tl.float64)).to(tl.float32)
    else:
        scale = tl.sqrt(found / count.to(tl.float64)).to(tl.float32)
    return tl.where(scale > least, scale, 0.0)


@triton.jit
def _measure(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    parts: tl.tensor,
    finite: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    ORDER: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    _, _, _, at, mask = tile(n, block, ROWS, COLS, GROUP)
    p = feed_at(x, residual, decay, at, mask)
    note_spoilt(finite, p, mask)
    tl.store(parts + tl.program_id(0).to(tl.int64) + tl.arange(0, ROWS), statistic(p, ORDER))


@triton.jit(do_not_specialize=["pieces"])
def _combine(
    parts: tl.tensor,
    scales: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    pieces: tl.tensor,
    most: tl.tensor,
    largest: tl.tensor,
    least: tl.tensor,
    ORDER: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    found = tl.full((), 0, tl.float64)
    for first in range(0, pieces, PARTS):
        piece = first + tl.arange(0, PARTS)
        part = tl.load(parts + row * pieces + piece, mask=piece < pieces, other=0.0)
        found = tl.maximum(found, tl.max(part, axis=0)) if ORDER == 0 else found + tl.sum(part, axis=0)
    count = tl.minimum(block, n - row * block)
    tl.store(scales + row, scale_of(found, count, most, largest, least, ORDER))
