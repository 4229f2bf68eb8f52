"""What kernels are made of: where elements come from, how they are rounded, and how one is told that is not finite."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["feed_at", "narrow", "note_spoilt", "read", "span", "spoilt", "widen"]


@triton.jit
def span(n: tl.tensor, TILE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Numbers of this program's elements (int64), and which of them exist."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    return at, at < n


@triton.jit
def read(x: tl.tensor, at: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Elements of any floating dtype, 16-bit ones widened to fp32; 0 where the mask is."""
    return widen(tl.load(x + at, mask=mask, other=0.0))


@triton.jit
def widen(v: tl.tensor) -> tl.tensor:
    """16-bit numbers in fp32, others as they are."""
    if v.dtype == tl.bfloat16:
        # by its bits, as in `narrow`
        v = (v.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif v.dtype == tl.float16:
        v = v.to(tl.float32)
    return v


@triton.jit
def feed_at(x: tl.tensor, residual: tl.tensor, decay: tl.tensor, at: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """`x + decay * residual` in fp32; 0 where the mask is. A residual of None is left out when compiled."""
    p = read(x, at, mask).to(tl.float32)
    if residual is not None:
        p += tl.load(residual + at, mask=mask, other=0.0) * decay
    return p


@triton.jit
def narrow(v: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Rounded to a floating dtype, to nearest even."""
    if v.dtype != dtype:
        v = v.to(tl.float32)
        if dtype == tl.bfloat16:
            # by its bits: Triton's interpreter, which tests run, would not round to even
            bits = v.to(tl.int32, bitcast=True)
            rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            number = (bits & 0x7FFFFFFF) <= 0x7F800000
            v = tl.where(number, rounded, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)
        else:
            v = v.to(dtype)
    return v


@triton.jit
def spoilt(p: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Whether one of the elements is not finite."""
    broken = (tl.abs(p) < float("inf")) == 0
    flags = tl.ravel((broken & mask).to(tl.int32))
    return tl.max(flags, axis=0) != 0


@triton.jit
def note_spoilt(finite: tl.tensor, p: tl.tensor, mask: tl.tensor) -> None:
    """Make the flag False if one is not. All who write to it write the same."""
    tl.store(finite, False, mask=spoilt(p, mask))
