"""One bit per element, one scale per block. The first element is the lowest bit of the first byte."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..feed import Feed
from .launching import finite_flag
from .scales import Rule, measure, scale_of, statistic
from .source import feed_at, note_spoilt, read
from .tiles import acceptable, add_to, decode_check, sections, tile, tiles_of

__all__ = ["sign_decode_add", "sign_encode", "sign_pack", "sign_unpack_add"]

_OCTET = 8


def sign_encode(feed: Feed, block: int, order: int, payload: torch.Tensor) -> torch.Tensor:
    """As the reference. Sums are formed in another order: a scale may differ in its last place."""
    x, residual, decay, rest = feed
    tiles, finite, rule = tiles_of(x.numel(), block, _OCTET), finite_flag(x), Rule(order)
    scales, bits = sections(payload, tiles)
    if not tiles.whole:
        measure(feed, tiles, rule, scales, finite)
    where = (rest, scales, bits, finite, tiles.blocks, *rule[1:])
    tiles.launch(_encode, x, residual, decay, *where, ORDER=order, MEASURED=not tiles.whole)
    return finite


def sign_decode_add(
    payload: torch.Tensor, block: int, out: torch.Tensor, weight: float, *, fresh: bool = False
) -> None:
    """As the reference; where a scale is negative, infinite or NaN, its block becomes NaN, and so does `out[0]`."""
    if fresh:
        out.zero_()
    tiles = tiles_of(out.numel(), block, _OCTET)
    scales, bits = sections(payload, tiles)
    alone = decode_check(tiles, scales, out)
    tiles.launch(_decode, bits, scales, tiles.blocks, out, weight, CHECKED=True, ALONE=alone)


def sign_pack(x: torch.Tensor, bits: torch.Tensor) -> None:
    """The bits alone."""
    tiles_of(x.numel(), x.numel(), _OCTET).launch(_pack, x, bits)


def sign_unpack_add(
    bits: torch.Tensor, scales: torch.Tensor, block: int, out: torch.Tensor, weight: float, *, fresh: bool = False
) -> None:
    """As `sign_decode_add`, with scales of any kind."""
    if fresh:
        out.zero_()
    tiles = tiles_of(out.numel(), block, _OCTET)
    tiles.launch(_decode, bits, scales, tiles.blocks, out, weight, CHECKED=False, ALONE=False)


@triton.jit
def _packed(v: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """A byte for each eight elements in the last dimension."""
    bit = tl.arange(0, 8)[None, None, :]
    return tl.sum(((v >= 0) & mask).to(tl.int32) << bit, axis=2).to(tl.uint8)


@triton.jit(do_not_specialize=["blocks"])
def _encode(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    rest: tl.tensor,
    scales: tl.tensor,
    bits: tl.tensor,
    finite: tl.tensor,
    blocks: tl.tensor,
    most: tl.tensor,
    largest: tl.tensor,
    least: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    ORDER: tl.constexpr,
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
        count = tl.minimum(block, n - rows * block)
        scale = scale_of(statistic(p, ORDER), count, most, largest, least, ORDER)
        tl.store(scales + rows, scale, mask=rows < blocks)
    tl.store(bits + starts // 8, _packed(p, mask), mask=there)
    if rest is not None:
        size = scale[:, None, None]
        tl.store(rest + at, p - tl.where(p >= 0, size, -size), mask=mask)


@triton.jit(do_not_specialize=["blocks"])
def _decode(
    bits: tl.tensor,
    scales: tl.tensor,
    blocks: tl.tensor,
    out: tl.tensor,
    weight: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    CHECKED: tl.constexpr,
    ALONE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    rows, starts, there, at, mask = tile(n, block, ROWS, COLS, GROUP)
    scale = tl.load(scales + rows, mask=rows < blocks, other=0.0)
    known = tl.where(acceptable(scale), scale, float("nan")) if CHECKED else scale
    octets = tl.load(bits + starts // 8, mask=there, other=0).to(tl.int32)
    size = (known * weight)[:, None, None]
    positive = (octets[:, :, None] >> tl.arange(0, 8)[None, None, :] & 1) != 0
    add_to(out, at, mask, tl.where(positive, size, -size), scale, ALONE)


@triton.jit
def _pack(
    x: tl.tensor,
    bits: tl.tensor,
    n: tl.tensor,
    block: tl.tensor,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    _, starts, there, at, mask = tile(n, block, ROWS, COLS, GROUP)
    tl.store(bits + starts // 8, _packed(read(x, at, mask), mask), mask=there)
