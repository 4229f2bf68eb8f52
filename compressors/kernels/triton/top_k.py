"""The k largest magnitudes: their places and their values."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..feed import Feed
from ..layout import Indices, blocks_of, indices_of
from .dense import settled
from .few import threshold_of_few
from .launching import launch
from .prefix import accumulate
from .select import magnitude, threshold
from .source import feed_at

__all__ = ["places", "top_k_encode"]

_DTYPES = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
#: a program's elements lie in rows of a tile
_ROWS, _COLS = 16, 256


class _Span(NamedTuple):
    """Which elements a program has: so many that chunks begin where rows do, or programs.

    Attributes:
        length: elements of a program.
        stride: elements of a row.
        chunk: programs of a chunk, if that is longer than a row.
    """

    length: int
    stride: int
    chunk: int


#: 16 chunks of 255; a 17th of a chunk of 65 535; as many as fit
_SPANS = {8: _Span(4080, 255, 1), 16: _Span(3855, 256, 17), 32: _Span(4096, 256, 1)}


def top_k_encode(feed: Feed, k: int, payload: torch.Tensor, exact: bool = True) -> torch.Tensor:
    """As the reference."""
    n = feed.x.numel()
    form = indices_of(n, k, exact)
    span = _SPANS[form.width]
    sent = payload[form.nbytes :].view(torch.float32)
    (x, residual, decay, rest), state, before, finite = _select(feed, k, exact, span)
    # what fills up the places, or all that may be left over
    payload[form.nbytes - 4 if exact else 0 : form.nbytes].zero_()
    if not exact:
        sent.zero_()
    length = before.shape[1]
    where = (*places(payload, form, k), sent, rest)
    shape = _shape(span) | {"WIDTH": form.width, "CHUNK": span.chunk}
    launch(_emit, length - 1, x, residual, decay, state, before, *where, length, form.chunks, n, k, **shape)
    return finite


def _select(feed: Feed, k: int, exact: bool, span: _Span) -> tuple[Feed, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is read next, and the threshold (see `threshold`); how many elements before each span exceed it, and how
    many equal it, then all (int64, 2 rows); and whether the sum is finite."""
    n = feed.x.numel()
    groups = blocks_of(n, span.length)
    if groups == 1 and exact:
        return settled(feed), *threshold_of_few(feed, k)
    source, state, finite = threshold(feed, k, exact)
    before = torch.empty((2, groups + 1), dtype=torch.int64, device=feed.x.device)
    launch(_count, groups, *source[:3], state, before, groups + 1, n, **_shape(span))
    accumulate(before)
    return source, state, before, finite


def _shape(span: _Span) -> dict[str, int]:
    return {"LENGTH": span.length, "STRIDE": span.stride, "ROWS": _ROWS, "COLS": _COLS}


def places(payload: torch.Tensor, form: Indices, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sections of a payload, as signed numbers of their width: counts (offsets again, if there are none), offsets."""
    dtype = _DTYPES[form.width]
    end = form.chunks * dtype.itemsize
    stop = end + k * dtype.itemsize
    offsets = payload[end:stop].view(dtype)
    return payload[:end].view(dtype) if end else offsets, offsets


@triton.jit
def _elements(
    n: tl.tensor, LENGTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of this program [ROWS, COLS]: numbers within its span, numbers (int64), and which exist."""
    column = tl.arange(0, COLS)[None, :]
    local = tl.arange(0, ROWS)[:, None] * STRIDE + column
    at = tl.program_id(0).to(tl.int64) * LENGTH + local
    return local, at, (column < STRIDE) & (local < LENGTH) & (at < n)


@triton.jit
def _earlier(mask: tl.tensor) -> tl.tensor:
    """How many entries of a tile are before each one, row after row (int32)."""
    ones = mask.to(tl.int32)
    rows = tl.sum(ones, axis=1)
    return (tl.cumsum(rows, axis=0) - rows)[:, None] + tl.cumsum(ones, axis=1) - ones


@triton.jit
def _sent_before(before: tl.tensor, group: tl.tensor, length: tl.tensor, ties: tl.tensor, k: tl.tensor) -> tl.tensor:
    """How many elements before this span are sent."""
    equal = tl.load(before + length + group)
    return tl.minimum(tl.load(before + group) + tl.minimum(equal, ties), k)


@triton.jit(do_not_specialize=["length"])
def _count(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    state: tl.tensor,
    counts: tl.tensor,
    length: tl.tensor,
    n: tl.tensor,
    LENGTH: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    """How many elements of this span exceed the threshold, and how many equal it."""
    _, at, mask = _elements(n, LENGTH, STRIDE, ROWS, COLS)
    size = magnitude(feed_at(x, residual, decay, at, mask)).to(tl.int64)
    limit = tl.load(state)
    to = counts + tl.program_id(0)
    tl.store(to, tl.sum(tl.sum(((size > limit) & mask).to(tl.int32), axis=1), axis=0).to(tl.int64))
    tl.store(to + length, tl.sum(tl.sum(((size == limit) & mask).to(tl.int32), axis=1), axis=0).to(tl.int64))


@triton.jit(do_not_specialize=["length", "chunks", "k"])
def _emit(
    x: tl.tensor,
    residual: tl.tensor,
    decay: tl.tensor,
    state: tl.tensor,
    before: tl.tensor,
    counts: tl.tensor,
    offsets: tl.tensor,
    values: tl.tensor,
    rest: tl.tensor,
    length: tl.tensor,
    chunks: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    LENGTH: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    local, at, mask = _elements(n, LENGTH, STRIDE, ROWS, COLS)
    p = feed_at(x, residual, decay, at, mask)
    size, limit, ties = magnitude(p).to(tl.int64), tl.load(state), tl.load(state + 1)
    group = tl.program_id(0).to(tl.int64)
    equal = (size == limit) & mask
    wanted = (size > limit) & mask | equal & (tl.load(before + length + group) + _earlier(equal) < ties)
    number = _sent_before(before, group, length, ties, k) + _earlier(wanted)
    wanted = wanted & (number < k)
    if WIDTH == 8:
        offset = local % STRIDE
        chunk = group * ROWS + tl.arange(0, ROWS)
        tl.store(counts + chunk, tl.sum(wanted.to(tl.int32), axis=1).to(tl.uint8), mask=chunk < chunks)
    elif WIDTH == 16:
        offset = group % CHUNK * LENGTH + local
        stop = tl.minimum(group + CHUNK, length - 1)
        count = _sent_before(before, stop, length, ties, k) - _sent_before(before, group, length, ties, k)
        tl.store(counts + group // CHUNK, count.to(tl.int16), mask=group % CHUNK == 0)
    else:
        offset = at
    tl.store(offsets + number, offset.to(offsets.dtype.element_ty), mask=wanted)
    tl.store(values + number, p, mask=wanted)
    if rest is not None:
        tl.store(rest + at, 0.0, mask=wanted)
