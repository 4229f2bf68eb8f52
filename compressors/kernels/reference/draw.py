"""Which elements all ranks draw alike."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["draw"]


def draw(numel: int, k: int, seed: int) -> torch.Tensor:
    """`k` distinct integers below `numel`, ascending (int64, on the CPU); every subset is equally likely.

    Draws with replacement, never more than are missing, until enough are marked; past one half it draws those to
    leave out. That is far cheaper than a permutation, and no order of drawing favours any subset.

    Args:
        numel: how many there are.
        k: how many are drawn, 1 to `numel`.
        seed: 63 bits.
    """
    draws = min(k, numel - k)
    bits = np.random.Philox(key=seed)  # its stream is fixed for all versions of numpy
    drawn = np.zeros(numel, dtype=bool)
    while missing := draws - np.count_nonzero(drawn):
        drawn[bits.random_raw(missing) % np.uint64(numel)] = True
    return torch.from_numpy(np.flatnonzero(drawn == (k == draws)))
