"""Eight or four bits per element, one scale per block."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from ..feed import Feed
from ..layout import E4M3, E5M2, INT4, INT8, Grid
from .dense import total
from .philox import uniform
from .pieces import blocks, check_scales, guarded, sections

__all__ = ["largest_scale", "levels_decode_add", "levels_encode"]

_FLT_MAX = torch.finfo(torch.float32).max
_FLOATS = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}
#: bits of exponent, bits of mantissa, and the exponent of 1
_PARTS = {E4M3: (4, 3, 7), E5M2: (5, 2, 15)}


def levels_encode(feed: Feed, grid: Grid, block: int, seed: int | None, payload: torch.Tensor) -> bool:
    """Scales, the largest magnitude / `grid.most` of each block; then the levels nearest to element / scale.

    Args:
        feed: what is encoded.
        grid: the levels. Integers are two's complement; of two in a byte the first is in the lowest bits.
        block: elements per scale; for four bits even, or at least all.
        seed: round at random and unbiased, element i by number i of `philox.uniform`; None: to nearest even.
            Integers only.
        payload: bytes.

    Returns:
        False if the feed's sum is not finite.
    """
    flat, finite = total(feed)
    if not finite:
        return False
    scales, levels = sections(payload, flat.numel(), block)
    _measure(flat, block, grid, scales)
    _quantize(flat, scales, block, grid, levels, seed)
    if feed.rest is not None:
        _add(levels, scales, block, grid, feed.rest, -1.0)
    return True


def levels_decode_add(
    payload: torch.Tensor, grid: Grid, block: int, out: torch.Tensor, weight: float, *, fresh: bool = False
) -> None:
    """`out += weight * scale * level`, onto zeros where `out` is `fresh`.

    All codes of floats are finite, also those that elsewhere mean inf and NaN.

    Raises:
        PayloadError: a scale is negative, infinite or NaN; nothing was added.
    """
    scales, levels = sections(payload, out.numel(), block)
    check_scales(scales)
    if fresh:
        out.zero_()
    _add(levels, scales, block, grid, out, weight)


def _measure(x: torch.Tensor, block: int, grid: Grid, scales: torch.Tensor) -> None:
    scales.zero_()
    for part in blocks(x.numel(), block):
        peak = x[part.span].view(part.rows, -1).abs().amax(dim=1)
        scales[part.blocks] = torch.maximum(scales[part.blocks], peak)
    scales.copy_(guarded((scales / grid.most).clamp_(max=largest_scale(grid))))


def largest_scale(grid: Grid) -> float:
    """So that the largest level times a scale stays finite."""
    return float(np.nextafter(np.float32(_FLT_MAX / grid.most), np.float32(0)))


def _quantize(
    x: torch.Tensor, scales: torch.Tensor, block: int, grid: Grid, out: torch.Tensor, seed: int | None
) -> None:
    factors = torch.where(scales > 0, 1 / scales, 0.0)
    for part in blocks(x.numel(), block):
        values = (x[part.span].view(part.rows, -1) * factors[part.blocks, None]).view(-1)
        if grid in _FLOATS:
            codes = values.clamp_(-grid.most, grid.most).to(_FLOATS[grid]).view(torch.uint8)
        else:
            codes = _rounded(values, seed, part.span.start).clamp_(-grid.most, grid.most).to(torch.int8)
        start = part.span.start * grid.bits // 8
        packed = _nibbles(codes) if grid is INT4 else codes.view(torch.uint8)
        out[start : start + packed.numel()] = packed


def _rounded(values: torch.Tensor, seed: int | None, first: int) -> torch.Tensor:
    if seed is None:
        return values.round_()
    return values.add_(uniform(seed, first, values.numel(), values.device)).floor_()


def _nibbles(levels: torch.Tensor) -> torch.Tensor:
    pairs = torch.nn.functional.pad(levels, (0, levels.numel() % 2)).view(-1, 2) & 15
    return (pairs[:, 0] | pairs[:, 1] << 4).view(torch.uint8)


def _add(levels: torch.Tensor, scales: torch.Tensor, block: int, grid: Grid, out: torch.Tensor, weight: float) -> None:
    weighted = scales * weight
    for part in blocks(out.numel(), block):
        start, stop = part.span.start * grid.bits // 8, -(-part.span.stop * grid.bits // 8)
        values = _values(levels[start:stop], grid)[: part.span.stop - part.span.start]
        out[part.span].add_((values.view(part.rows, -1) * weighted[part.blocks, None]).view(-1))


def _values(codes: torch.Tensor, grid: Grid) -> torch.Tensor:
    if grid is INT8:
        return codes.view(torch.int8).to(torch.float32)
    if grid is INT4:
        nibbles = torch.stack((codes & 15, codes >> 4), dim=1).view(-1).view(torch.int8)
        return ((nibbles ^ 8) - 8).to(torch.float32)
    return _table(grid, codes.device).index_select(0, codes.int())


@cache
def _table(grid: Grid, device: torch.device) -> torch.Tensor:
    """The value of each code."""
    exponent_bits, mantissa_bits, bias = _PARTS[grid]
    code = torch.arange(256, device=device)
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    whole = torch.where(exponent > 0, mantissa + (1 << mantissa_bits), mantissa)
    value = torch.ldexp(whole.to(torch.float32), exponent.clamp(min=1) - bias - mantissa_bits)
    return torch.where(code > 127, -value, value)
