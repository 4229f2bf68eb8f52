"""Work goes in pieces: temporaries stay small, and in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch

from ...errors import PayloadError
from ..layout import SCALE_BYTES, blocks_of

__all__ = ["PIECE", "Part", "block_sizes", "blocks", "check_scales", "guarded", "sections", "spans"]

#: elements that are worked on at a time
PIECE = 1 << 18

_FLT_MIN = torch.finfo(torch.float32).tiny


class Part(NamedTuple):
    """A run of whole blocks, or a piece of one long block."""

    span: slice
    blocks: slice
    rows: int


def spans(numel: int) -> Iterator[slice]:
    """Pieces of at most `PIECE` elements."""
    return (slice(start, min(start + PIECE, numel)) for start in range(0, numel, PIECE))


def blocks(numel: int, block: int) -> Iterator[Part]:
    """Cut into parts of at most `PIECE` elements that start at multiples of 8, if `block` is one or covers all."""
    whole = numel // block * block
    stride = max(1, PIECE // block) * block
    edges = [*range(0, whole, stride), whole, *([numel] if whole < numel else [])]
    for start, stop in pairwise(edges):
        for inner in spans(stop - start):
            first, last = start + inner.start, start + inner.stop
            rows = max(1, (last - first) // block)
            yield Part(slice(first, last), slice(first // block, first // block + rows), rows)


def block_sizes(numel: int, block: int, device: torch.device | None = None) -> torch.Tensor:
    """How many elements each block has (int64): all `block`, but the last may have fewer."""
    starts = torch.arange(0, numel, block, device=device)
    return (numel - starts).clamp_(max=block)


def sections(payload: torch.Tensor, numel: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a payload: a scale per block (fp32), and the bytes behind them."""
    end = SCALE_BYTES * blocks_of(numel, block)
    return payload[:end].view(torch.float32), payload[end:]


def guarded(scales: torch.Tensor) -> torch.Tensor:
    """Denormal scales become 0: their reciprocal would be inf."""
    return torch.where(scales > _FLT_MIN, scales, 0.0)


def check_scales(scales: torch.Tensor) -> None:
    """Refuse scales that no encoder writes.

    Raises:
        PayloadError: a scale is negative, infinite or NaN.
    """
    low, high = torch.aminmax(scales)
    if not bool((low >= 0) & torch.isfinite(high)):
        raise PayloadError(f"block scales reach from {float(low)} to {float(high)}, expected finite and not negative")
