"""All elements: sums with the residual, checks, copies and casts to 16 bits. One pass each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..feed import Feed
from .launching import finite_flag, launch_over
from .source import feed_at, narrow, note_spoilt, read, span, spoilt, widen

__all__ = ["all_finite", "cast_decode_add", "cast_encode", "copy", "settle", "settled", "total", "unsettled_rest"]


def all_finite(x: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    finite = finite_flag(x)
    launch_over(x.numel(), _check, x, finite, x.numel())
    return finite


def copy(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    finite = finite_flag(x)
    launch_over(x.numel(), _copy, x, out, finite, x.numel())
    return finite


def total(feed: Feed) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference. Without residual and rest, the sum is `x` itself if that is in fp32."""
    if feed.rest is not None:
        return feed.rest, settle(feed)[1]
    x = feed.x
    if feed.residual is None and x.dtype is torch.float32:
        return x, all_finite(x)
    flat = torch.empty(x.numel(), dtype=torch.float32, device=x.device)
    return flat, settle(feed._replace(rest=flat))[1]


def settle(feed: Feed) -> tuple[Feed, torch.Tensor]:
    """The first of several passes: the sum goes to `feed.rest`, if there is one.

    Returns:
        What later passes are fed with; and whether the sum is finite: bool, 0-dim.
    """
    x, residual, decay, _ = feed
    finite = finite_flag(x)
    launch_over(x.numel(), _sum, x, residual, decay, unsettled_rest(feed), finite, x.numel())
    return settled(feed), finite


def settled(feed: Feed) -> Feed:
    """What passes after the first are fed with: the rest, if there is one."""
    return feed if feed.rest is None else Feed(feed.rest, rest=feed.rest)


def unsettled_rest(feed: Feed) -> torch.Tensor | None:
    """Where the first pass has to write the sum; nowhere, if it is there already."""
    x, residual, _, rest = feed
    there = rest is not None and residual is None and rest.data_ptr() == x.data_ptr()
    return None if there else rest


def cast_encode(feed: Feed, divisor: float, out: torch.Tensor) -> torch.Tensor:
    """As the reference: how many saturated, or -1, int64."""
    x, residual, decay, rest = feed
    count = torch.zeros((), dtype=torch.int64, device=x.device)
    limit = torch.finfo(out.dtype).max
    launch_over(x.numel(), _cast, x, residual, decay, rest, out, count, x.numel(), divisor, 1 / divisor, limit)
    return count.clamp_(min=-1)


def cast_decode_add(values: torch.Tensor, out: torch.Tensor, weight: float, *, fresh: bool = False) -> None:
    """As the reference."""
    if fresh:
        out.zero_()
    launch_over(out.numel(), _cast_add, values, out, out.numel(), weight)


@triton.jit
def _check(x: tl.tensor, finite: tl.tensor, n: tl.tensor, TILE: tl.constexpr) -> None:
    at, mask = span(n, TILE)
    note_spoilt(finite, read(x, at, mask), mask)


@triton.jit
def _copy(x: tl.tensor, out: tl.tensor, finite: tl.tensor, n: tl.tensor, TILE: tl.constexpr) -> None:
    at, mask = span(n, TILE)
    v = read(x, at, mask)
    note_spoilt(finite, v, mask)
    tl.store(out + at, narrow(v, out.dtype.element_ty), mask=mask)


@triton.jit
def _sum(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    out: tl.tensor,
    finite: tl.tensor,
    n: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    at, mask = span(n, TILE)
    p = feed_at(x, residual, decay, at, mask)
    note_spoilt(finite, p, mask)
    if out is not None:
        tl.store(out + at, p, mask=mask)


@triton.jit
def _cast(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    rest: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    n: tl.tensor,
    divisor: tl.tensor,
    inverse: tl.tensor,
    limit: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    at, mask = span(n, TILE)
    p = feed_at(x, residual, decay, at, mask)
    saturated = tl.sum((tl.abs(p) > limit).to(tl.int32), axis=0).to(tl.int64)
    # however many saturate elsewhere, the sum stays negative
    found = tl.where(spoilt(p, mask), tl.full((), -1, tl.int64) - n, saturated)
    tl.atomic_add(count, found, mask=found != 0)
    most = limit * inverse
    code = narrow(tl.minimum(tl.maximum(p * inverse, -most), most), out.dtype.element_ty)
    tl.store(out + at, code, mask=mask)
    if rest is not None:
        tl.store(rest + at, p - widen(code) * divisor, mask=mask)


@triton.jit
def _cast_add(values: tl.tensor, out: tl.tensor, n: tl.tensor, weight: tl.tensor, TILE: tl.constexpr) -> None:
    at, mask = span(n, TILE)
    added = read(values, at, mask).to(tl.float32) * weight
    tl.store(out + at, tl.load(out + at, mask=mask) + added, mask=mask)
