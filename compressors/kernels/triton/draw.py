"""Entries that all ranks draw alike: one from each of k runs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import reference
from ..feed import Feed
from .dense import settle
from .launching import launch_over
from .philox import signed, words
from .source import feed_at

__all__ = ["draw", "draw_decode_add", "draw_encode"]


def draw(numel: int, k: int, seed: int, device: torch.device) -> torch.Tensor:
    """As the reference, errors included; so do the others here."""
    reference.check_draw(numel, k, seed)
    places = torch.empty(k, dtype=torch.int64, device=device)
    launch_over(k, _list, places, numel, k, signed(seed))
    return places


def draw_encode(feed: Feed, k: int, seed: int, out: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    n = feed.x.numel()
    reference.check_draw(n, k, seed)
    (x, residual, decay, rest), finite = settle(feed)
    launch_over(k, _gather, x, residual, decay, rest, out, n, k, signed(seed))
    return finite


def draw_decode_add(values: torch.Tensor, seed: int, scaled: bool, out: torch.Tensor, weight: float) -> None:
    """As the reference."""
    n, k = out.numel(), values.numel()
    reference.check_draw(n, k, seed)
    launch_over(k, _add, values, out, weight, n, k, signed(seed), SCALED=scaled)


@triton.jit
def _places(
    n: tl.tensor, k: tl.tensor, seed: tl.tensor, TILE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Of this program's runs [1, TILE / 4, 4]: their numbers, which of them exist, their places and lengths (int64)."""
    starts = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE // 4)[None, :] * 4
    run = starts[:, :, None] + tl.arange(0, 4)[None, None, :]
    shortest = n // k
    longer = n - shortest * k
    length = shortest + (run < longer).to(tl.int64)
    drawn = words(seed, starts, run).to(tl.int64) * length >> 32
    return run, run < k, run * shortest + tl.minimum(run, longer) + drawn, length


@triton.jit(do_not_specialize=["k", "seed"])
def _list(places: tl.tensor, n: tl.tensor, k: tl.tensor, seed: tl.tensor, TILE: tl.constexpr) -> None:
    run, mask, place, _ = _places(n, k, seed, TILE)
    tl.store(places + run, place, mask=mask)


@triton.jit(do_not_specialize=["k", "seed"])
def _gather(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    rest: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    seed: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    run, mask, place, _ = _places(n, k, seed, TILE)
    tl.store(out + run, feed_at(x, residual, decay, place, mask), mask=mask)
    if rest is not None:
        tl.store(rest + place, 0.0, mask=mask)


@triton.jit(do_not_specialize=["k", "seed"])
def _add(
    values: tl.tensor,
    out: tl.tensor,
    weight: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    seed: tl.tensor,
    SCALED: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    run, mask, place, length = _places(n, k, seed, TILE)
    added = tl.load(values + run, mask=mask, other=0.0) * weight
    if SCALED:
        added *= length.to(tl.float32)
    tl.store(out + place, tl.load(out + place, mask=mask, other=0.0) + added, mask=mask)
