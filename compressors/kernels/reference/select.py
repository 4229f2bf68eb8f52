"""Which elements are the largest."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from .pieces import spans

__all__ = ["SAMPLES", "sampled", "top_k"]

#: how many magnitudes the first guess at the threshold looks at
SAMPLES = 1 << 16
#: magnitudes, as bits, are counted by their highest ones
_BIN, _BINS = 17, 1 << 14


def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k largest magnitudes, ascending; among equals the lowest index wins. 1 <= k <= numel."""
    threshold = _guess(x, k)
    indices, magnitudes = _survivors(x, threshold)
    if indices.numel() < k:
        indices, magnitudes = _survivors(x, 0.0)
    return indices[_largest(magnitudes, k)]


def sampled(x: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of at most k elements, ascending: the first ones to reach a magnitude that few samples tell.

    It is chosen so that mostly somewhat fewer than k reach it. Where the samples say too little, or nothing reaches
    it, these are the k largest.
    """
    threshold = _sampled_threshold(x, k)
    if threshold is None:
        return top_k(x, k)
    indices = torch.cat([_where(x[span].abs() >= threshold).add_(span.start) for span in spans(x.numel())])[:k]
    return indices if indices.numel() else top_k(x, k)


def _sampled_threshold(x: torch.Tensor, k: int) -> float | None:
    """The upper end of a bin of magnitudes, such that those above it are about as many as wanted, less a margin."""
    n = x.numel()
    count = min(SAMPLES, n // 16)
    if 2 * k >= n or not count:
        return None
    rank = float(k) * float(count) / float(n)
    enough = rank - (3 * math.sqrt(rank) + 4)
    if enough < rank / 2:
        return None
    magnitudes = x[_strata(n // count, count).to(x.device)].view(torch.int32) & 0x7FFFFFFF
    reach = torch.bincount(magnitudes >> _BIN, minlength=_BINS).flip(0).cumsum(0).flip(0).cpu().numpy()
    lowest = int(np.count_nonzero((reach >= enough) & (reach > 0)))  # the bins before it reach far enough
    if lowest == _BINS or reach[lowest] < rank / 2:
        return None
    return float(np.array(lowest << _BIN, dtype=np.int32).view(np.float32))


@lru_cache(maxsize=64)
def _strata(stride: int, count: int) -> torch.Tensor:
    """A pseudo-random place in each of `count` strata: columns of a matrix must not line up with the strata."""
    powers = np.cumprod(np.full(count, 1664525, dtype=np.uint32), dtype=np.uint32)
    before = np.cumsum(np.concatenate(([1], powers[:-1])), dtype=np.uint32)
    jitter = powers + before * np.uint32(1013904223)  # of a linear congruential generator that begins with 1
    return torch.from_numpy(np.arange(count) * stride + ((jitter >> np.uint32(8)).astype(np.int64) * stride >> 24))


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
