"""Seeds for private generators, equal on every platform. The global generators are never used."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

__all__ = ["derive", "sample"]


def derive(*parts: int | str) -> int:
    """A 63-bit seed from a base seed, a tensor's name, a step and whatever else tells streams apart."""
    text = "\0".join(f"str:{part}" if isinstance(part, str) else f"int:{int(part)}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def sample(numel: int, k: int, seed: int) -> torch.Tensor:
    """`k` distinct integers below `numel`, ascending (int64); every subset is equally likely.

    Draws with replacement, never more than are missing, until enough are marked; past one half it draws those to
    leave out. That is far cheaper than a permutation, and no order of drawing favours any subset.
    """
    draws = min(k, numel - k)
    bits = np.random.Philox(key=seed)  # its stream is fixed for all versions of numpy
    drawn = np.zeros(numel, dtype=bool)
    while missing := draws - np.count_nonzero(drawn):
        drawn[bits.random_raw(missing) % np.uint64(numel)] = True
    return torch.from_numpy(np.flatnonzero(drawn == (k == draws)))
