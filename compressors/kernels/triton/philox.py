"""Random numbers by counting, as in `reference.philox`: Philox4x32-10, for use inside kernels."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["signed", "uniform", "words"]


def signed(seed: int) -> int:
    """The same 64 bits as a signed number: what kernels take."""
    return seed - (1 << 64) if seed >> 63 else seed


@triton.jit
def words(seed: tl.tensor, starts: tl.tensor, numbers: tl.tensor) -> tl.tensor:
    """Words of the stream, 32 bits each (uint32).

    Args:
        seed: its two halves are the key.
        starts: where groups of words begin, each of them within four that share a counter [A, B].
        numbers: of the words wanted [A, B, GROUP].
    """
    counter = starts // 4
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    zero = tl.zeros_like(low)
    a, b, c, d = tl.philox(seed, low, high, zero, zero)
    which = numbers & 3
    first = tl.where(which == 0, a[:, :, None], b[:, :, None])
    second = tl.where(which == 2, c[:, :, None], d[:, :, None])
    return tl.where(which < 2, first, second)


@triton.jit
def uniform(seed: tl.tensor, starts: tl.tensor, numbers: tl.tensor) -> tl.tensor:
    """The same as numbers in [0, 1): fp32 multiples of 2^-24."""
    return (words(seed, starts, numbers) >> 8).to(tl.float32) * 5.9604644775390625e-08
