"""Levels and their codes, for use inside kernels. Grids are known by their numbers in `layout`."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["float_code", "floored", "load_codes", "nearest", "store_codes", "value_of"]


@triton.jit
def nearest(v: tl.tensor) -> tl.tensor:
    """To the nearest integer, halves to the even one; for magnitudes up to 2^22."""
    return v + 12582912.0 - 12582912.0


@triton.jit
def floored(v: tl.tensor) -> tl.tensor:
    """To the next integer below; for magnitudes up to 2^22. Unlike `tl.floor`, it does not take denormals for 0."""
    whole = v.to(tl.int32).to(tl.float32)
    return tl.where(whole > v, whole - 1.0, whole)


@triton.jit
def float_code(v: tl.tensor, GRID: tl.constexpr) -> tl.tensor:
    """The 8-bit float nearest to a number that is within its range: sign, exponent, mantissa (int32)."""
    MANTISSA: tl.constexpr = 3 if GRID == 2 else 2
    BIAS: tl.constexpr = 7 if GRID == 2 else 15
    bits = v.to(tl.int32, bitcast=True)
    exponent = tl.maximum(bits >> 23 & 0xFF, 128 - BIAS)
    # the step between neighbours there is 1 after this, and products with powers of two are exact
    unit = (254 + MANTISSA - exponent << 23).to(tl.float32, bitcast=True)
    steps = nearest(tl.abs(v) * unit).to(tl.int32)
    return (bits >> 24 & 0x80) | (exponent + BIAS - 128 << MANTISSA) + steps


@triton.jit
def float_value(code: tl.tensor, GRID: tl.constexpr) -> tl.tensor:
    """What it stands for: all codes are finite."""
    MANTISSA: tl.constexpr = 3 if GRID == 2 else 2
    BIAS: tl.constexpr = 7 if GRID == 2 else 15
    exponent = (code & 0x7F) >> MANTISSA
    mantissa = code & (1 << MANTISSA) - 1
    whole = mantissa + ((exponent > 0).to(tl.int32) << MANTISSA)
    unit = (127 + tl.maximum(exponent, 1) - BIAS - MANTISSA << 23).to(tl.float32, bitcast=True)
    size = whole.to(tl.float32) * unit
    return tl.where(code > 127, -size, size)


@triton.jit
def value_of(code: tl.tensor, GRID: tl.constexpr) -> tl.tensor:
    """The level that a code stands for, in fp32."""
    return code.to(tl.float32) if GRID < 2 else float_value(code, GRID)


@triton.jit
def store_codes(
    levels: tl.tensor,
    code: tl.tensor,
    starts: tl.tensor,
    there: tl.tensor,
    at: tl.tensor,
    mask: tl.tensor,
    GRID: tl.constexpr,
) -> None:
    """Codes of a tile go to memory: a byte each, or two in one."""
    if GRID == 1:
        nibble = (code & 15) << 4 * tl.arange(0, 2)[None, None, :]
        tl.store(levels + starts // 2, tl.sum(nibble, axis=2).to(tl.uint8), mask=there)
    else:
        tl.store(levels + at, code.to(tl.uint8), mask=mask)


@triton.jit
def load_codes(
    levels: tl.tensor, starts: tl.tensor, there: tl.tensor, at: tl.tensor, mask: tl.tensor, GRID: tl.constexpr
) -> tl.tensor:
    """And back; integers are signed (int32)."""
    if GRID == 1:
        octets = tl.load(levels + starts // 2, mask=there, other=0).to(tl.int32)
        code = ((octets[:, :, None] >> 4 * tl.arange(0, 2)[None, None, :] & 15) ^ 8) - 8
    else:
        code = tl.load(levels + at, mask=mask, other=0).to(tl.int32)
        if GRID == 0:
            code = (code ^ 128) - 128
    return code
