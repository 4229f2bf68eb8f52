"""Eight, four or two bits per element."""

from __future__ import annotations

import torch

from .. import reference
from ..feed import Feed
from ..layout import Grid, levels_bytes, two_bit_bytes
from .entry import entry, refused, threads_for
from .records import expect, expect_bytes, fields

__all__ = ["levels_decode_add", "levels_encode", "two_bit_decode_add", "two_bit_encode"]

_levels_decode_add = entry("levels_decode_add")
_levels_encode = entry("levels_encode")
_two_bit_decode_add = entry("two_bit_decode_add")
_two_bit_encode = entry("two_bit_encode")


def levels_encode(
    feed: Feed, grid: Grid, block: int, seed: int | None, payload: torch.Tensor, threads: int | None = None
) -> bool:
    what, n = fields(feed)
    expect_bytes(payload, levels_bytes(n, block, grid))
    where, at_random = payload.data_ptr(), seed is not None
    return not _levels_encode(*what, block, seed or 0, where, grid.number, at_random, threads or threads_for(n))


def levels_decode_add(
    payload: torch.Tensor,
    grid: Grid,
    block: int,
    out: torch.Tensor,
    weight: float,
    threads: int | None = None,
    *,
    fresh: bool = False,
) -> None:
    n = out.numel()
    expect(out, n)
    expect_bytes(payload, levels_bytes(n, block, grid))
    to = out.data_ptr(), n, weight, threads or threads_for(n), fresh
    if status := _levels_decode_add(payload.data_ptr(), block, *to, grid.number):
        refused(status, reference.levels_decode_add, payload, grid, block, out, weight)


def two_bit_encode(feed: Feed, block: int, payload: torch.Tensor, threads: int | None = None) -> bool:
    what, n = fields(feed)
    expect_bytes(payload, two_bit_bytes(n, block))
    return not _two_bit_encode(*what, block, payload.data_ptr(), threads or threads_for(n))


def two_bit_decode_add(
    payload: torch.Tensor,
    block: int,
    out: torch.Tensor,
    weight: float,
    threads: int | None = None,
    *,
    fresh: bool = False,
) -> None:
    n = out.numel()
    expect(out, n)
    expect_bytes(payload, two_bit_bytes(n, block))
    to = out.data_ptr(), n, weight, threads or threads_for(n), fresh
    if status := _two_bit_decode_add(payload.data_ptr(), block, *to):
        refused(status, reference.two_bit_decode_add, payload, block, out, weight)
