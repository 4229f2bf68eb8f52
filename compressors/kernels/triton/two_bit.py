"""Two bits per element, two magnitudes per block."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..feed import Feed
from ..layout import PAIR_BYTES
from .launching import finite_flag, launch
from .scales import PARTS, Rule, measure, scale_of, statistic
from .source import feed_at, note_spoilt
from .tiles import Tiles, acceptable, add_to, decode_check, tile, tiles_of

__all__ = ["two_bit_decode_add", "two_bit_encode"]

_QUARTET = 4
#: the mean that parts a block's magnitudes is no scale: it may be denormal
_MEAN = Rule(1, least=0.0)


def two_bit_encode(feed: Feed, block: int, payload: torch.Tensor) -> torch.Tensor:
    """As the reference. Sums are formed in another order.

    So means may differ in their last place, and what lies between the two may count among the others.
    """
    x, residual, decay, rest = feed
    tiles, finite = tiles_of(x.numel(), block, _QUARTET), finite_flag(x)
    magnitudes, codes = _sections(payload, tiles)
    means = None if tiles.whole else _measure_pieces(feed, tiles, magnitudes, finite)
    tiles.launch(_encode, x, residual, decay, rest, means, magnitudes, codes, finite, tiles.blocks)
    return finite


def two_bit_decode_add(
    payload: torch.Tensor, block: int, out: torch.Tensor, weight: float, *, fresh: bool = False
) -> None:
    """As the reference; where a magnitude is negative, infinite or NaN, what it stands for becomes NaN, and so does
    `out[0]`.
    """
    if fresh:
        out.zero_()
    tiles = tiles_of(out.numel(), block, _QUARTET)
    magnitudes, codes = _sections(payload, tiles)
    alone = decode_check(tiles, magnitudes, out)
    tiles.launch(_decode, codes, magnitudes, tiles.blocks, out, weight, ALONE=alone)


def _sections(payload: torch.Tensor, tiles: Tiles) -> tuple[torch.Tensor, torch.Tensor]:
    end = PAIR_BYTES * tiles.blocks
    return payload[:end].view(torch.float32), payload[end:]


def _measure_pieces(feed: Feed, tiles: Tiles, magnitudes: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """Fills in the magnitudes of blocks that are cut into pieces, and returns the means that part them."""
    x, residual, decay, _ = feed
    means = torch.empty(tiles.blocks, dtype=torch.float32, device=x.device)
    measure(feed, tiles, _MEAN, means, finite)
    parts = torch.empty(3 * tiles.programs, dtype=torch.float64, device=x.device)
    tiles.launch(_part, x, residual, decay, means, parts)
    shape = (tiles.numel, tiles.block, tiles.pieces, tiles.programs)
    launch(_combine, tiles.blocks, parts, magnitudes, *shape, PARTS=PARTS)
    return means


@triton.jit
def _sums(p: tl.tensor, high: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of each row of a tile, in fp64: the sums of low and of high magnitudes, and how many are high."""
    size = tl.abs(p)
    low_sum = tl.sum(tl.sum(tl.where(high, 0.0, size).to(tl.float64), axis=2), axis=1)
    high_sum = tl.sum(tl.sum(tl.where(high, size, 0.0).to(tl.float64), axis=2), axis=1)
    return low_sum, high_sum, tl.sum(tl.sum(high.to(tl.int32), axis=2), axis=1).to(tl.float64)


@triton.jit
def _mean(total: tl.tensor, count: tl.tensor) -> tl.tensor:
    """A magnitude: 0 of none, and instead of a denormal one."""
    mean = tl.where(count > 0, total / tl.maximum(count, 1.0), 0.0).to(tl.float32)
    return tl.where(mean > 1.1754943508222875e-38, mean, 0.0)


@triton.jit
def _part(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    means: tl.tensor,
    parts: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    rows, _, _, at, mask = tile(n, block, ROWS, COLS, GROUP)
    p = feed_at(x, residual, decay, at, mask)
    high = (tl.abs(p) >= tl.load(means + rows)[:, None, None]) & mask
    low_sum, high_sum, count = _sums(p, high)
    to = parts + tl.program_id(0).to(tl.int64) + tl.arange(0, ROWS)
    tl.store(to, low_sum)
    tl.store(to + tl.num_programs(0), high_sum)
    tl.store(to + 2 * tl.num_programs(0).to(tl.int64), count)


@triton.jit(do_not_specialize=["pieces", "programs"])
def _combine(
    parts: tl.tensor,
    magnitudes: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    pieces: tl.tensor,
    programs: tl.tensor,
    PARTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    low_sum = tl.full((), 0, tl.float64)
    high_sum = tl.full((), 0, tl.float64)
    high_count = tl.full((), 0, tl.float64)
    for first in range(0, pieces, PARTS):
        piece = first + tl.arange(0, PARTS)
        at = parts + row * pieces + piece
        there = piece < pieces
        low_sum += tl.sum(tl.load(at, mask=there, other=0.0), axis=0)
        high_sum += tl.sum(tl.load(at + programs, mask=there, other=0.0), axis=0)
        high_count += tl.sum(tl.load(at + 2 * programs, mask=there, other=0.0), axis=0)
    count = tl.minimum(block, n - row * block).to(tl.float64)
    tl.store(magnitudes + 2 * row, _mean(low_sum, count - high_count))
    tl.store(magnitudes + 2 * row + 1, _mean(high_sum, high_count))


@triton.jit(do_not_specialize=["blocks"])
def _encode(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    rest: tl.tensor,
    means: tl.tensor,
    magnitudes: tl.tensor,
    codes: tl.tensor,
    finite: tl.tensor,
    blocks: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    rows, starts, there, at, mask = tile(n, block, ROWS, COLS, GROUP)
    p = feed_at(x, residual, decay, at, mask)
    if means is not None:
        high = (tl.abs(p) >= tl.load(means + rows, mask=rows < blocks, other=0.0)[:, None, None]) & mask
        low_size = tl.load(magnitudes + 2 * rows, mask=rows < blocks, other=0.0)
        high_size = tl.load(magnitudes + 2 * rows + 1, mask=rows < blocks, other=0.0)
    else:
        note_spoilt(finite, p, mask)
        count = tl.minimum(block, n - rows * block)
        high = (tl.abs(p) >= scale_of(statistic(p, 1), count, 1.0, 1.0, 0.0, 1)[:, None, None]) & mask
        low_sum, high_sum, high_count = _sums(p, high)
        low_size = _mean(low_sum, count.to(tl.float64) - high_count)
        high_size = _mean(high_sum, high_count)
        tl.store(magnitudes + 2 * rows, low_size, mask=rows < blocks)
        tl.store(magnitudes + 2 * rows + 1, high_size, mask=rows < blocks)
    code = ((p >= 0) & mask).to(tl.int32) + high.to(tl.int32) * 2
    packed = tl.sum(code << 2 * tl.arange(0, 4)[None, None, :], axis=2)
    tl.store(codes + starts // 4, packed.to(tl.uint8), mask=there)
    if rest is not None:
        size = tl.where(high, high_size[:, None, None], low_size[:, None, None])
        tl.store(rest + at, p - tl.where(p >= 0, size, -size), mask=mask)


@triton.jit(do_not_specialize=["blocks"])
def _decode(
    codes: tl.tensor,
    magnitudes: tl.tensor,
    blocks: tl.tensor,
    out: tl.tensor,
    weight: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    ALONE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    rows, starts, there, at, mask = tile(n, block, ROWS, COLS, GROUP)
    low = tl.load(magnitudes + 2 * rows, mask=rows < blocks, other=0.0)
    high = tl.load(magnitudes + 2 * rows + 1, mask=rows < blocks, other=0.0)
    low_size = (tl.where(acceptable(low), low, float("nan")) * weight)[:, None, None]
    high_size = (tl.where(acceptable(high), high, float("nan")) * weight)[:, None, None]
    octets = tl.load(codes + starts // 4, mask=there, other=0).to(tl.int32)
    code = octets[:, :, None] >> 2 * tl.arange(0, 4)[None, None, :] & 3
    size = tl.where(code >= 2, high_size, low_size)
    added = tl.where((code & 1) != 0, size, -size)
    add_to(out, at, mask, added, tl.where(acceptable(low), high, low), ALONE)
