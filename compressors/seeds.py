"""Seeds for private generators, equal on every platform. The global generators are never used."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

__all__ = ["derive", "sample"]


def derive(*parts: int | str) -> int:
    """A 63-bit seed from a base seed, a tensor's name, a step and whatever else tells streams apart."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def sample(numel: int, k: int, seed: int) -> torch.Tensor:
    """`k` distinct integers below `numel`, ascending (int64); every subset is equally likely.

    It draws with replacement until k distinct ones are there, never more than are missing, so that the cost
    grows with k and not with `numel`; past one half it draws those to leave out.
    """
    if 2 * k > numel:
        kept = torch.ones(numel, dtype=torch.bool)
        kept[sample(numel, numel - k, seed)] = False
        return kept.nonzero().view(-1)
    bits = np.random.Philox(key=seed)  # its stream is fixed for all versions of numpy
    chosen = np.empty(0, dtype=np.uint64)
    while chosen.size < k:
        drawn = bits.random_raw(k - chosen.size) % np.uint64(numel)
        chosen = np.unique(np.concatenate([chosen, drawn]))
    return torch.from_numpy(chosen.astype(np.int64))
