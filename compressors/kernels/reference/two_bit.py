"""Two bits per element, two magnitudes per block."""

from __future__ import annotations

import torch

from ..feed import Feed
from ..layout import PAIR_BYTES, blocks_of
from .dense import total
from .pieces import block_sizes, blocks, check_scales, guarded

__all__ = ["two_bit_decode_add", "two_bit_encode"]


def two_bit_encode(feed: Feed, block: int, payload: torch.Tensor) -> bool:
    """Per block two magnitudes, then per element its sign and which of them stands for it.

    What is smaller in magnitude than the mean of its block decodes to the mean of all that are, and so does what is
    not: one step of Lloyd's iteration. Magnitudes at or below FLT_MIN are 0.

    Args:
        feed: what is encoded.
        block: elements per pair of magnitudes, a multiple of 4 or at least all.
        payload: bytes. An element's lower bit is 1 where it is >= 0, the higher one where its magnitude is the second
            of the block; the first element is in the lowest bits of the first byte, and unused bits are 0.

    Returns:
        False if the feed's sum is not finite.
    """
    flat, finite = total(feed)
    if not finite:
        return False
    magnitudes, codes = _sections(payload, flat.numel(), block)
    means = _measure(flat, block, magnitudes)
    for part in blocks(flat.numel(), block):
        x = flat[part.span].view(part.rows, -1)
        code = ((x >= 0) | (x.abs() >= means[part.blocks, None]).byte() << 1).view(-1)
        packed = _pack(code)
        codes[part.span.start // 4 : part.span.start // 4 + packed.numel()] = packed
    if feed.rest is not None:
        _add(codes, magnitudes, block, feed.rest, -1.0)
    return True


def two_bit_decode_add(
    payload: torch.Tensor, block: int, out: torch.Tensor, weight: float, *, fresh: bool = False
) -> None:
    """`out += weight * ±magnitude`, onto zeros where `out` is `fresh`.

    Raises:
        PayloadError: a magnitude is negative, infinite or NaN; nothing was added.
    """
    magnitudes, codes = _sections(payload, out.numel(), block)
    check_scales(magnitudes)
    if fresh:
        out.zero_()
    _add(codes, magnitudes, block, out, weight)


def _sections(payload: torch.Tensor, numel: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    end = PAIR_BYTES * blocks_of(numel, block)
    return payload[:end].view(torch.float32).view(-1, 2), payload[end:]


def _measure(x: torch.Tensor, block: int, magnitudes: torch.Tensor) -> torch.Tensor:
    """Fills in the magnitudes of each block, and returns the mean that parts them."""
    sizes = block_sizes(x.numel(), block, x.device)
    sums, low_sums, high_sums, high_counts = torch.zeros((4, sizes.numel()), dtype=torch.float64, device=x.device)
    for part in blocks(x.numel(), block):
        sums[part.blocks] += x[part.span].view(part.rows, -1).abs().sum(dim=1, dtype=torch.float64)
    means = (sums / sizes).to(torch.float32)
    for part in blocks(x.numel(), block):
        magnitude = x[part.span].view(part.rows, -1).abs()
        high = magnitude >= means[part.blocks, None]
        low_sums[part.blocks] += torch.where(high, 0.0, magnitude).sum(dim=1, dtype=torch.float64)
        high_sums[part.blocks] += torch.where(high, magnitude, 0.0).sum(dim=1, dtype=torch.float64)
        high_counts[part.blocks] += high.sum(dim=1)
    low_counts = sizes - high_counts
    low = torch.where(low_counts > 0, low_sums / low_counts, 0.0)
    high = torch.where(high_counts > 0, high_sums / high_counts, 0.0)
    magnitudes.copy_(guarded(torch.stack((low, high), dim=1).to(torch.float32)))
    return means


def _pack(codes: torch.Tensor) -> torch.Tensor:
    """Four codes a byte."""
    four = torch.nn.functional.pad(codes, (0, -codes.numel() % 4)).view(-1, 4)
    return four[:, 0] | four[:, 1] << 2 | four[:, 2] << 4 | four[:, 3] << 6


def _add(codes: torch.Tensor, magnitudes: torch.Tensor, block: int, out: torch.Tensor, weight: float) -> None:
    weighted = magnitudes * weight
    for part in blocks(out.numel(), block):
        octets = codes[part.span.start // 4 : (part.span.stop + 3) // 4]
        code = torch.stack([octets >> shift & 3 for shift in (0, 2, 4, 6)], dim=1).view(-1)
        code = code[: part.span.stop - part.span.start].view(part.rows, -1)
        low, high = (weighted[part.blocks, which, None] for which in (0, 1))
        size = torch.where(code >= 2, high, low)
        out[part.span].add_(torch.where(code & 1 == 1, size, -size).view(-1))
