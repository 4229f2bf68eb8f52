"""Random numbers by counting: number i depends on the seed and on i alone, on every device (Salmon et al. 2011)."""

from __future__ import annotations

import torch

__all__ = ["uniform", "words"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def uniform(seed: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """Words `first` to `first + count` of the stream as numbers in [0, 1): fp32 multiples of 2^-24."""
    return (words(seed, first, count, device) >> 8).to(torch.float32).mul_(2.0**-24)


def words(seed: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """Words `first` to `first + count` of the stream: 32 bits each, as int64.

    Philox4x32-10 with the seed's two halves as key; block j, whose counter is j, gives words 4j to 4j + 3.
    """
    start, stop = first // 4, -(-(first + count) // 4)
    return _blocks(seed, start, stop, device).view(-1)[first - 4 * start :][:count]


def _blocks(seed: int, start: int, stop: int, device: torch.device) -> torch.Tensor:
    counter = torch.arange(start, stop, device=device)
    a, b = counter & _MASK, counter >> 32
    c = d = torch.zeros_like(counter)
    low, high = seed & _MASK, seed >> 32 & _MASK
    for _ in range(_ROUNDS):
        # products wrap around as int64, and keep their bits
        one, two = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (two >> 32 & _MASK) ^ b ^ low, two & _MASK, (one >> 32 & _MASK) ^ d ^ high, one & _MASK
        low, high = low + _WEYL[0] & _MASK, high + _WEYL[1] & _MASK
    return torch.stack((a, b, c, d), dim=1)
