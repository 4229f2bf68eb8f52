"""Which magnitude an element must exceed to be one of the k largest: digit by digit, or told by samples."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from ..feed import Feed
from ..reference.select import SAMPLES
from .dense import settled, unsettled_rest
from .launching import TILE, finite_flag, launch
from .source import feed_at, note_spoilt

__all__ = ["magnitude", "threshold"]

#: bits of a magnitude below each digit; the first digit has 11 bits, the others 10
_SHIFTS = (20, 10, 0)
_DIGITS = 2048
#: programs that count, each in bins of its own until it ends
_COUNTERS = 1024
#: as in `reference.select`: magnitudes are counted by their highest 14 bits
_BINS = 1 << 14


def threshold(feed: Feed, k: int, exact: bool) -> tuple[Feed, torch.Tensor, torch.Tensor]:
    """What tells the elements that are sent.

    Args:
        feed: its sum goes to its rest, if there is one.
        k: how many are wanted.
        exact: False: samples tell a magnitude, if they say enough; as `reference.select.sampled`.

    Returns:
        What later passes are fed with; the state: a magnitude, as bits, and how many that are equal to it are sent
        besides all that exceed it (int64, 2 of 3 entries); and whether the sum is finite: bool, 0-dim.
    """
    x, residual, decay, _ = feed
    n, finite = x.numel(), finite_flag(x)
    state = torch.zeros(3, dtype=torch.int64, device=x.device)
    bins = torch.zeros((len(_SHIFTS), _DIGITS), dtype=torch.int64, device=x.device)
    sampled = not exact and _sample(feed, k, state)
    source, to = (x, residual, decay), unsettled_rest(feed)
    for shift, digits in zip(_SHIFTS, bins, strict=True):
        shape = {"SHIFT": shift, "SAMPLED": sampled, "DIGITS": _DIGITS}
        programs = min(-(-n // TILE), _COUNTERS)
        launch(_count_digits, programs, *source, to, state, digits, finite, n, **shape, TILE=TILE)
        launch(_descend, 1, digits, state, k, **shape)
        source, to = settled(feed)[:3], None
    return settled(feed), state, finite


def _sample(feed: Feed, k: int, state: torch.Tensor) -> bool:
    """Whether samples are asked; the state's last entry is then 1 where they say enough, and the first what."""
    x, residual, decay, _ = feed
    n = x.numel()
    count = min(SAMPLES, n // 16)
    if 2 * k >= n or not count:
        return False
    rank = 1.0 * k * count / n
    enough = rank - (3 * math.sqrt(rank) + 4)
    if enough < rank / 2:
        return False
    bins = torch.zeros(_BINS, dtype=torch.int32, device=x.device)
    launch(_count_samples, -(-count // TILE), x, residual, decay, bins, count, n // count, TILE=TILE)
    launch(_judge_samples, 1, bins, state, math.ceil(enough), math.ceil(rank / 2), BINS=_BINS)
    return True


@triton.jit
def magnitude(p: tl.tensor) -> tl.tensor:
    """As bits, which order like magnitudes (int32)."""
    return p.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _count_digits(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    rest: tl.tensor,
    state: tl.tensor,
    digits: tl.tensor,
    finite: tl.tensor,
    n: tl.tensor,
    SHIFT: tl.constexpr,
    SAMPLED: tl.constexpr,
    DIGITS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Of magnitudes whose higher digits are known; the first time also: whether they are finite, and rest = p."""
    FIRST: tl.constexpr = SHIFT == 20
    needed = tl.load(state + 2) == 0
    last = tl.full((), 0, tl.int64) + n
    if SAMPLED and not FIRST:
        last = tl.where(needed, last, 0)
    known = tl.load(state).to(tl.int32)
    found = tl.zeros((DIGITS,), tl.int32)
    for start in range(tl.program_id(0).to(tl.int64) * TILE, last, tl.num_programs(0) * TILE):
        at = start + tl.arange(0, TILE)
        mask = at < n
        p = feed_at(x, residual, decay, at, mask)
        size = magnitude(p)
        if FIRST:
            note_spoilt(finite, p, mask)
            if rest is not None:
                tl.store(rest + at, p, mask=mask)
            found += tl.histogram(size >> SHIFT, DIGITS, mask=mask & needed)
        else:
            found += tl.histogram(size >> SHIFT & 1023, DIGITS, mask=mask & (size >> SHIFT + 10 == known))
    tl.atomic_add(digits + tl.arange(0, DIGITS), found.to(tl.int64), mask=found > 0)


@triton.jit(do_not_specialize=["k"])
def _descend(
    digits: tl.tensor, state: tl.tensor, k: tl.tensor, SHIFT: tl.constexpr, SAMPLED: tl.constexpr, DIGITS: tl.constexpr
) -> None:
    """The state's first two entries: the digits so far, and the rank that is sought among those that have them."""
    known = tl.load(state)
    rank = tl.load(state + 1)
    if SHIFT == 20:
        rank = tl.full((), 0, tl.int64) + k
    digit = tl.arange(0, DIGITS)
    here = tl.load(digits + digit)
    above = tl.sum(here, axis=0) - tl.cumsum(here, axis=0)
    hit = (above < rank) & (above + here >= rank)
    width: tl.constexpr = 11 if SHIFT == 20 else 10
    found = (known << width) + tl.sum(tl.where(hit, digit, 0), axis=0)
    left = rank - tl.sum(tl.where(hit, above, 0), axis=0)
    needed = tl.load(state + 2) == 0
    if SAMPLED:
        found = tl.where(needed, found, known)
        left = tl.where(needed, left, 0)
    tl.store(state, found)
    tl.store(state + 1, left)


@triton.jit(do_not_specialize=["count", "stride"])
def _count_samples(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    bins: tl.tensor,
    count: tl.tensor,
    stride: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """One magnitude from each stratum, at a place that a linear congruential generator draws."""
    stratum = tl.program_id(0) * TILE + tl.arange(0, TILE)
    steps = stratum.to(tl.uint32) + 1
    drawn = tl.full((TILE,), 1, tl.uint32)
    # so many steps at once, as powers of two
    factor = tl.full((TILE,), 1664525, tl.uint32)
    term = tl.full((TILE,), 1013904223, tl.uint32)
    for bit in tl.static_range(17):
        drawn = tl.where((steps >> bit & 1) != 0, drawn * factor + term, drawn)
        term = factor * term + term
        factor = factor * factor
    place = stratum.to(tl.int64) * stride + ((drawn >> 8).to(tl.int64) * stride >> 24)
    mask = stratum < count
    size = magnitude(feed_at(x, residual, decay, place, mask))
    tl.atomic_add(bins + (size >> 17), 1, mask=mask)


@triton.jit(do_not_specialize=["enough", "half"])
def _judge_samples(bins: tl.tensor, state: tl.tensor, enough: tl.tensor, half: tl.tensor, BINS: tl.constexpr) -> None:
    """The upper end of a bin; not if too few samples exceed it."""
    number = tl.arange(0, BINS)
    here = tl.load(bins + number)
    reach = tl.sum(here, axis=0) - tl.cumsum(here, axis=0) + here
    lowest = tl.sum((reach >= enough).to(tl.int32), axis=0)
    above = tl.sum(tl.where(number == lowest, reach, 0), axis=0)
    told = (lowest < BINS) & (above >= half)
    # what reaches it exceeds the next smaller magnitude
    tl.store(state, tl.where(told, (lowest << 17) - 1, 0).to(tl.int64), mask=told)
    tl.store(state + 2, 1, mask=told)
