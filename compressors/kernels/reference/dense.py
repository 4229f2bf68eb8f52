"""All elements: sums with the residual, checks, copies and casts to 16 bits."""

from __future__ import annotations

import torch

from ..feed import Feed
from .pieces import spans

__all__ = ["all_finite", "cast_decode_add", "cast_encode", "copy", "total", "zero"]


def all_finite(x: torch.Tensor) -> bool:
    """False if `x` (any floating dtype, not empty) holds NaN or inf. One pass."""
    low, high = torch.aminmax(x)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def copy(x: torch.Tensor, out: torch.Tensor) -> bool:
    """`out = x`, which may be in another dtype; False if `x` is not finite."""
    out.copy_(x)
    return all_finite(x)


def total(feed: Feed) -> tuple[torch.Tensor, bool]:
    """`x + decay * residual` in fp32, in `feed.rest` if that is given; and whether it is finite."""
    x, residual, decay, rest = feed
    flat = x.to(torch.float32) if rest is None else rest
    if rest is not None and rest.data_ptr() != x.data_ptr():
        rest.copy_(x)
    if residual is not None:
        flat = flat if rest is not None else torch.empty_like(flat).copy_(x)
        for span in spans(flat.numel()):
            flat[span] += residual[span] if decay == 1.0 else residual[span] * decay
    return flat, all_finite(flat)


def zero(out: torch.Tensor) -> None:
    """`out = 0`, which is flat."""
    out.zero_()


def cast_encode(feed: Feed, divisor: float, out: torch.Tensor) -> int:
    """`out = x / divisor` in out's dtype; magnitudes of x beyond its range saturate.

    Args:
        feed: x stands for its sum with the residual.
        divisor: a power of two.
        out: fp16 or bf16.

    Returns:
        How many saturated; -1 if the sum is not finite.
    """
    flat, finite = total(feed)
    if not finite:
        return -1
    limit = torch.finfo(out.dtype).max
    saturated = 0
    for span in spans(flat.numel()):
        saturated += int((flat[span].abs() > limit).sum())
        out[span] = (flat[span] / divisor).clamp_(-limit / divisor, limit / divisor)
    if feed.rest is not None:
        cast_decode_add(out, feed.rest, -divisor)
    return saturated


def cast_decode_add(values: torch.Tensor, out: torch.Tensor, weight: float, *, fresh: bool = False) -> None:
    """`out += weight * values`, whatever floating dtype the values have; the product is formed in fp32.

    Where `out` is `fresh`, onto zeros.
    """
    if fresh:
        out.zero_()
    for span in spans(out.numel()):
        out[span].add_(values[span].to(torch.float32).mul(weight))
