"""Reading places from payloads: entries that are added or cleared there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..layout import Indices, indices_of
from .launching import launch
from .prefix import accumulate
from .top_k import places

__all__ = ["clear", "sparse_decode_add"]

#: how the entries of a program are read: chunks, and entries of each at a time
_SHAPES = {8: (64, 16), 16: (1, 1024), 32: (1, 1024)}
#: chunks that are counted at a time
_COUNTED = 4096


def clear(payload: torch.Tensor, k: int, out: torch.Tensor, exact: bool = True) -> None:
    """As the reference; other payloads do as in `sparse_decode_add`."""
    _visit(None, payload, k, out, 0.0, exact)


def sparse_decode_add(payload: torch.Tensor, k: int, out: torch.Tensor, weight: float, exact: bool = True) -> None:
    """As the reference; where it raises an error, `out[0]` becomes NaN, and others may have anything added."""
    values = payload[indices_of(out.numel(), k, exact).nbytes :].view(torch.float32)
    _visit(values, payload, k, out, weight, exact)


def _visit(
    values: torch.Tensor | None,
    payload: torch.Tensor,
    k: int,
    out: torch.Tensor,
    weight: float,
    exact: bool,
) -> None:
    """Add values, or put zeros where they would go."""
    n = out.numel()
    form = indices_of(n, k, exact)
    counts, offsets = places(payload, form, k)
    rows, cols = _SHAPES[form.width]
    groups = -(-form.chunks // rows) if form.chunks else -(-k // cols)
    # where each program's entries begin, how many there are, and whether something was wrong
    state = torch.zeros((1, groups + 2), dtype=torch.int64, device=out.device)
    shape = {"WIDTH": form.width, "ROWS": rows, "COLS": cols}
    if form.chunks:
        _sum_counts(counts, state, groups, form, rows)
    numbers = (groups + 1, form.chunks, form.chunk, n, k, weight)
    launch(_read, groups, counts, offsets, values, out, state, *numbers, **shape)
    launch(_mark, 1, out, state, groups, k, CHUNKED=form.chunks > 0, EXACT=exact)


def _sum_counts(counts: torch.Tensor, state: torch.Tensor, groups: int, form: Indices, rows: int) -> None:
    """How many entries there are before each group of so many chunks, and in all."""
    programs = -(-groups // (_COUNTED // rows))
    shape = {"WIDTH": form.width, "ROWS": rows, "TILE": _COUNTED}
    launch(_count, programs, counts, state, groups, form.chunks, ALONE=programs == 1, **shape)
    if programs > 1:
        accumulate(state[:, :-1])


@triton.jit
def _unsigned(v: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """Numbers of so many bits (int64)."""
    return v.to(tl.int64) & ((1 << WIDTH) - 1)


@triton.jit(do_not_specialize=["groups", "chunks"])
def _count(
    counts: tl.tensor,
    sums: tl.tensor,
    groups: tl.tensor,
    chunks: tl.tensor,
    ALONE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """How many entries groups of ROWS chunks have; a single program replaces that by running totals."""
    group = tl.program_id(0).to(tl.int64) * (TILE // ROWS) + tl.arange(0, TILE // ROWS)
    chunk = group[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    count = _unsigned(tl.load(counts + chunk, mask=chunk < chunks, other=0), WIDTH)
    here = tl.sum(count, axis=1)
    if ALONE:
        tl.store(sums + groups, tl.sum(here, axis=0))
        here = tl.cumsum(here, axis=0) - here
    tl.store(sums + group, here, mask=group < groups)


@triton.jit
def _apply(
    values: tl.tensor,
    out: tl.tensor,
    number: tl.tensor,
    place: tl.tensor,
    mask: tl.tensor,
    weight: tl.tensor,
) -> None:
    if values is None:
        tl.store(out + place, 0.0, mask=mask)
    else:
        v = tl.load(values + number, mask=mask, other=0.0) * weight
        tl.store(out + place, tl.load(out + place, mask=mask, other=0.0) + v, mask=mask)


@triton.jit(do_not_specialize=["flag", "chunks", "length", "k"])
def _read(
    counts: tl.tensor,
    offsets: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    state: tl.tensor,
    flag: tl.tensor,
    chunks: tl.tensor,
    length: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    weight: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    """Entries of ROWS chunks, COLS of each at a time. Those that are out of order or bounds are left out, and told."""
    group = tl.program_id(0).to(tl.int64)
    chunk = group * ROWS + tl.arange(0, ROWS)
    if WIDTH == 32:
        base, first, stop = chunk * 0, group * COLS + chunk * 0, tl.minimum(group * COLS + COLS, k) + chunk * 0
    else:
        count = _unsigned(tl.load(counts + chunk, mask=chunk < chunks, other=0), WIDTH)
        first = tl.load(state + group) + tl.cumsum(count, axis=0) - count
        base, stop = chunk * length, tl.minimum(first + count, k)
    room = tl.minimum(n - base, length)[:, None]
    for step in range(0, tl.max(stop - first, axis=0), COLS):
        number = first[:, None] + step + tl.arange(0, COLS)[None, :]
        mask = number < stop[:, None]
        offset = _unsigned(tl.load(offsets + number, mask=mask, other=0), WIDTH)
        # the first entry of a chunk has none before it; without chunks that is the very first
        follows = number > (0 if WIDTH == 32 else first[:, None])
        last = _unsigned(tl.load(offsets + number - 1, mask=mask & follows, other=0), WIDTH)
        fine = (offset < room) & ((offset > last) | (follows == 0))
        wrong = tl.max(tl.max((mask & (fine == 0)).to(tl.int32), axis=1), axis=0)
        tl.store(state + flag, 1, mask=wrong != 0)
        _apply(values, out, number, base[:, None] + offset, mask & fine, weight)


@triton.jit(do_not_specialize=["groups", "k"])
def _mark(
    out: tl.tensor, state: tl.tensor, groups: tl.tensor, k: tl.tensor, CHUNKED: tl.constexpr, EXACT: tl.constexpr
) -> None:
    """Make the first element NaN if something was wrong."""
    wrong = tl.load(state + groups + 1) != 0
    if CHUNKED:
        found = tl.load(state + groups)
        wrong = wrong | (found > k)
        if EXACT:
            wrong = wrong | (found != k)
    tl.store(out, float("nan"), mask=wrong)
