"""One bit per element, one scale per block. The first element is the lowest bit of the first byte."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from ..feed import Feed
from .dense import total
from .pieces import block_sizes, blocks, check_scales, guarded, sections, spans

__all__ = ["sign_decode_add", "sign_encode", "sign_pack", "sign_unpack_add"]

#: times a word of 0/1 bytes: the highest byte of the product has their bits, the first byte's lowest
_PACK = 0x0102040810204080


def sign_encode(feed: Feed, block: int, order: int, payload: torch.Tensor) -> bool:
    """Scales, then one bit per element, 1 where it is >= 0; the unused bits of the last byte are 0.

    Args:
        feed: what is encoded.
        block: elements per scale, a multiple of 8 or at least all.
        order: 1 for mean magnitudes, 2 for root mean squares; 0 where that is not above FLT_MIN.
        payload: bytes.

    Returns:
        False if the feed's sum is not finite.
    """
    flat, finite = total(feed)
    if not finite:
        return False
    scales, bits = sections(payload, flat.numel(), block)
    _measure(flat, block, order, scales)
    sign_pack(flat, bits)
    if feed.rest is not None:
        sign_unpack_add(bits, scales, block, feed.rest, -1.0)
    return True


def sign_decode_add(
    payload: torch.Tensor, block: int, out: torch.Tensor, weight: float, *, fresh: bool = False
) -> None:
    """`out += weight * scale` where the bit is 1, `-weight * scale` where it is 0; onto zeros where `out` is `fresh`.

    Raises:
        PayloadError: a scale is negative, infinite or NaN; nothing was added.
    """
    scales, bits = sections(payload, out.numel(), block)
    check_scales(scales)
    sign_unpack_add(bits, scales, block, out, weight, fresh=fresh)


def sign_pack(x: torch.Tensor, bits: torch.Tensor) -> None:
    """The bits alone."""
    for span in spans(x.numel()):
        packed = _pack(x[span] >= 0)
        bits[span.start // 8 : span.start // 8 + packed.numel()] = packed


def sign_unpack_add(
    bits: torch.Tensor, scales: torch.Tensor, block: int, out: torch.Tensor, weight: float, *, fresh: bool = False
) -> None:
    """As `sign_decode_add`, with scales of any kind."""
    if fresh:
        out.zero_()
    table = _signs(out.device)
    weighted = scales * weight
    for part in blocks(out.numel(), block):
        octets = bits[part.span.start // 8 : (part.span.stop + 7) // 8]
        signs = table.index_select(0, octets.int()).view(-1)[: part.span.stop - part.span.start]
        values = signs.view(part.rows, -1).mul_(weighted[part.blocks, None])
        out[part.span].add_(values.view(-1))


def _measure(x: torch.Tensor, block: int, order: int, scales: torch.Tensor) -> None:
    sums = torch.zeros(scales.numel(), dtype=torch.float64, device=x.device)
    for part in blocks(x.numel(), block):
        norm = torch.linalg.vector_norm(x[part.span].view(part.rows, -1), order, dim=1, dtype=torch.float64)
        sums[part.blocks] += norm**order
    mean = (sums / block_sizes(x.numel(), block, device=x.device)) ** (1 / order)
    scales.copy_(guarded(mean.to(torch.float32)))


def _pack(mask: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.packbits(mask.numpy(), bitorder="little")) if mask.is_cpu else _pack_words(mask)


def _pack_words(mask: torch.Tensor) -> torch.Tensor:
    """As `numpy.packbits`, on any device: eight 0/1 bytes are one word, and a product gathers its bits."""
    padded = torch.nn.functional.pad(mask.view(torch.uint8), (0, -mask.numel() % 8))
    return ((padded.view(torch.int64) * _PACK >> 56) & 0xFF).to(torch.uint8)


@cache
def _signs(device: torch.device) -> torch.Tensor:
    """A row of eight +1 or -1 for each byte."""
    octets = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(octets).to(device, torch.float32).mul_(2).sub_(1)
