"""Eight bits per element, one scale per block."""

from __future__ import annotations

import numpy as np
import torch

from ..feed import Feed
from .dense import total
from .philox import uniform
from .pieces import blocks, check_scales, guarded, sections

__all__ = ["int8_decode_add", "int8_encode"]

#: so that 127 times a scale stays finite
_LARGEST_SCALE = float(np.nextafter(np.float32(torch.finfo(torch.float32).max / 127), np.float32(0)))


def int8_encode(feed: Feed, block: int, seed: int | None, payload: torch.Tensor) -> bool:
    """Scales, the largest magnitude / 127 of each block; then levels within ±127.

    Args:
        feed: what is encoded.
        block: elements per scale.
        seed: round at random and unbiased, element i by number i of `philox.uniform`; None: to nearest even.
        payload: bytes.

    Returns:
        False if the feed's sum is not finite.
    """
    flat = total(feed)
    if flat is None:
        return False
    scales, levels = sections(payload, flat.numel(), block)
    levels = levels.view(torch.int8)
    _measure(flat, block, scales)
    _quantize(flat, scales, block, levels, seed)
    if feed.rest is not None:
        _add(levels, scales, block, feed.rest, -1.0)
    return True


def int8_decode_add(payload: torch.Tensor, block: int, out: torch.Tensor, weight: float) -> None:
    """`out += weight * scale * level`.

    Raises:
        PayloadError: a scale is negative, infinite or NaN; nothing was added.
    """
    scales, levels = sections(payload, out.numel(), block)
    check_scales(scales)
    _add(levels.view(torch.int8), scales, block, out, weight)


def _measure(x: torch.Tensor, block: int, scales: torch.Tensor) -> None:
    scales.zero_()
    for part in blocks(x.numel(), block):
        peak = x[part.span].view(part.rows, -1).abs().amax(dim=1)
        scales[part.blocks] = torch.maximum(scales[part.blocks], peak)
    scales.copy_(guarded((scales / 127).clamp_(max=_LARGEST_SCALE)))


def _quantize(x: torch.Tensor, scales: torch.Tensor, block: int, out: torch.Tensor, seed: int | None) -> None:
    factors = torch.where(scales > 0, 1 / scales, 0.0)
    for part in blocks(x.numel(), block):
        levels = x[part.span].view(part.rows, -1) * factors[part.blocks, None]
        if seed is None:
            levels.round_()
        else:
            draws = uniform(seed, part.span.start, levels.numel(), x.device)
            levels.add_(draws.view_as(levels)).floor_()
        out[part.span] = levels.clamp_(-127, 127).view(-1)


def _add(levels: torch.Tensor, scales: torch.Tensor, block: int, out: torch.Tensor, weight: float) -> None:
    weighted = scales * weight
    for part in blocks(out.numel(), block):
        values = levels[part.span].view(part.rows, -1) * weighted[part.blocks, None]
        out[part.span].add_(values.view(-1))
