"""Which elements are the largest."""

from __future__ import annotations

import numpy as np
import torch

from .pieces import spans

__all__ = ["SAMPLES", "top_k"]

#: how many magnitudes the first guess at the threshold looks at
SAMPLES = 1 << 16


def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k largest magnitudes, ascending; among equals the lowest index wins. 1 <= k <= numel."""
    threshold = _guess(x, k)
    indices, magnitudes = _survivors(x, threshold)
    if indices.numel() < k:
        indices, magnitudes = _survivors(x, 0.0)
    return indices[_largest(magnitudes, k)]


def _guess(x: torch.Tensor, k: int) -> float:
    """A magnitude that somewhat more than k elements very likely reach; 0 if guessing would not pay."""
    n = x.numel()
    if n <= SAMPLES or 2 * k >= n:
        return 0.0
    sample = x[:: n // SAMPLES].abs()
    expected = k * sample.numel() / n
    rank = int(expected + 4 * expected**0.5 + 8)
    return float(sample.topk(rank, sorted=False).values.min()) if rank < sample.numel() else 0.0


def _survivors(x: torch.Tensor, threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and magnitudes of the elements that reach the threshold."""
    if threshold == 0.0:
        return torch.arange(x.numel(), device=x.device), x.abs()
    indices = torch.cat([_where(x[span].abs() >= threshold).add_(span.start) for span in spans(x.numel())])
    return indices, x[indices].abs_()


def _largest(magnitudes: torch.Tensor, k: int) -> torch.Tensor:
    """Positions of the k largest magnitudes, ascending; among equals the first ones."""
    smallest = magnitudes.topk(k, sorted=False).values.min()
    keep = magnitudes > smallest
    ties = _where(magnitudes == smallest)
    keep[ties[: k - int(keep.sum())]] = True
    return _where(keep)


def _where(mask: torch.Tensor) -> torch.Tensor:
    """Positions of the true entries; numpy is several times as fast as torch here."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.is_cpu else mask.nonzero().view(-1)
