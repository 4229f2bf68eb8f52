"""Eight or four bits per element, one scale per block."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from ..feed import Feed
from ..layout import INT4, Grid
from ..reference.levels import largest_scale
from .grids import float_code, floored, load_codes, nearest, store_codes, value_of
from .launching import finite_flag
from .philox import signed, uniform
from .scales import Rule, measure, scale_of, statistic
from .source import feed_at, note_spoilt
from .tiles import Tiles, acceptable, add_to, decode_check, sections, tile, tiles_of

__all__ = ["levels_decode_add", "levels_encode"]


def levels_encode(feed: Feed, grid: Grid, block: int, seed: int | None, payload: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    x, residual, decay, rest = feed
    tiles, finite, rule = _tiles(x.numel(), block, grid), finite_flag(x), _rule(grid)
    scales, levels = sections(payload, tiles)
    if not tiles.whole:
        measure(feed, tiles, rule, scales, finite)
    where = (rest, scales, levels, finite, tiles.blocks)
    numbers = (*rule[1:], 0 if seed is None else signed(seed))
    chosen = {"GRID": grid.number, "AT_RANDOM": seed is not None, "MEASURED": not tiles.whole}
    tiles.launch(_encode, x, residual, decay, *where, *numbers, **chosen)
    return finite


def levels_decode_add(
    payload: torch.Tensor, grid: Grid, block: int, out: torch.Tensor, weight: float, *, fresh: bool = False
) -> None:
    """As the reference; where a scale is negative, infinite or NaN, its block becomes NaN, and so does `out[0]`."""
    if fresh:
        out.zero_()
    tiles = _tiles(out.numel(), block, grid)
    scales, levels = sections(payload, tiles)
    alone = decode_check(tiles, scales, out)
    tiles.launch(_decode, levels, scales, tiles.blocks, out, weight, GRID=grid.number, ALONE=alone)


def _tiles(numel: int, block: int, grid: Grid) -> Tiles:
    if grid == INT4:
        return tiles_of(numel, block, 2)
    return tiles_of(numel, block, 4 if block % 4 == 0 or block >= numel else 1)


@cache
def _rule(grid: Grid) -> Rule:
    return Rule(0, grid.most, largest_scale(grid))


@triton.jit(do_not_specialize=["blocks", "seed"])
def _encode(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    rest: tl.tensor,
    scales: tl.tensor,
    levels: tl.tensor,
    finite: tl.tensor,
    blocks: tl.tensor,
    most: tl.tensor,
    largest: tl.tensor,
    least: tl.tensor,
    seed: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    GRID: tl.constexpr,
    AT_RANDOM: tl.constexpr,
    MEASURED: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    rows, starts, there, at, mask = tile(n, block, ROWS, COLS, GROUP)
    p = feed_at(x, residual, decay, at, mask)
    if MEASURED:
        scale = tl.load(scales + rows, mask=rows < blocks, other=0.0)
    else:
        note_spoilt(finite, p, mask)
        scale = scale_of(statistic(p, 0), rows, most, largest, least, 0)
        tl.store(scales + rows, scale, mask=rows < blocks)
    factor = tl.where(scale > 0, tl.div_rn(1.0, scale), 0.0)
    v = p * factor[:, None, None]
    if AT_RANDOM:
        v = floored(v + uniform(seed, starts, at))
    elif GRID < 2:
        v = nearest(v)
    v = tl.minimum(tl.maximum(v, -most), most)
    code = v.to(tl.int32) if GRID < 2 else float_code(v, GRID)
    store_codes(levels, code, starts, there, at, mask, GRID)
    if rest is not None:
        tl.store(rest + at, p - value_of(code, GRID) * scale[:, None, None], mask=mask)


@triton.jit(do_not_specialize=["blocks"])
def _decode(
    levels: tl.tensor,
    scales: tl.tensor,
    blocks: tl.tensor,
    out: tl.tensor,
    weight: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    GRID: tl.constexpr,
    ALONE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    rows, starts, there, at, mask = tile(n, block, ROWS, COLS, GROUP)
    scale = tl.load(scales + rows, mask=rows < blocks, other=0.0)
    factor = (tl.where(acceptable(scale), scale, float("nan")) * weight)[:, None, None]
    added = value_of(load_codes(levels, starts, there, at, mask, GRID), GRID) * factor
    add_to(out, at, mask, added, scale, ALONE)
