"""Helpers for tests of flat buckets: pieces of tensors laid out with padding, which holds garbage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from gradwire.backends import BucketReducer, Part

from .reducing import Shapes, bits, exact_mean, gradient

Totals = dict[str, torch.Tensor]

TENSORS: Shapes = {"w1": (17, 13), "b1": (13,), "w2": (40, 9), "scalar": (), "w3": (5, 7, 3)}


class Bucket(NamedTuple):
    """What lies where in a flat bucket of `numel` elements."""

    parts: list[Part]
    numel: int

    def filled(self, rank: int, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The rank's gradients; the padding holds NaN."""
        flat = torch.full((self.numel,), float("nan"), dtype=dtype)
        for part in self.parts:
            grad = gradient(part.name, part.shape, rank, step, dtype).reshape(-1)
            flat[part.start : part.stop] = grad[part.offset : part.end]
        return flat

    def exact(self, world_size: int, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The mean over the ranks in fp64; the padding is zero."""
        flat = torch.zeros(self.numel, dtype=torch.float64)
        for part in self.parts:
            mean = exact_mean(part.name, part.shape, world_size, step, dtype).reshape(-1)
            flat[part.start : part.stop] = mean[part.offset : part.end]
        return flat

    def padding(self) -> torch.Tensor:
        """True where nothing lies."""
        mask = torch.ones(self.numel, dtype=torch.bool)
        for part in self.parts:
            mask[part.start : part.stop] = False
        return mask

    def add_to(self, totals: Totals, flat: torch.Tensor) -> None:
        """Add what lies in the bucket to totals by tensor (flat, fp64)."""
        for part in self.parts:
            total = totals.setdefault(part.name, torch.zeros(math.prod(part.shape), dtype=torch.float64))
            total[part.offset : part.end] += flat[part.start : part.stop]


def bucket(pieces: Iterable[tuple[str, int, int]], shapes: Shapes = TENSORS, gap: int = 3) -> Bucket:
    """Pieces (name, first element, last + 1) in a row, with padding before, between and behind them."""
    parts, start = [], gap
    for name, low, high in pieces:
        parts.append(Part(name, shapes[name], start, high - low, low))
        start += high - low + gap
    return Bucket(parts, start)


def whole(shapes: Shapes = TENSORS, gap: int = 3) -> Bucket:
    """All of every tensor."""
    return bucket([(name, 0, math.prod(shape)) for name, shape in shapes.items()], shapes, gap)


def even_bounds(numel: int, world_size: int) -> list[int]:
    return [numel * rank // world_size for rank in range(world_size + 1)]


def pending_bits(reducer: BucketReducer, names: Iterable[str]) -> dict[str, bytes]:
    return {name: bits(reducer.pending(name)) for name in names}


def kept_bits(reducer: BucketReducer) -> dict[str, dict[str, bytes]]:
    """Everything that a reducer keeps at this moment, committed or not."""
    ledgers = {"worker": reducer._workers, "server": reducer._servers}
    return {
        f"{kind} {name}": {key: bits(value) for key, value in run.state.items()}
        for kind, ledger in ledgers.items()
        for name, run in ledger._runs.items()
    }


def assert_law(given: Sequence[Totals], owed: Sequence[Totals], exact: Totals) -> None:
    """What was given, equal on all ranks, and what they owe together are what came in."""
    for name, came_in in exact.items():
        assert {bits(totals[name]) for totals in given} == {bits(given[0][name])}, name
        debt = torch.stack([pending[name].double().view(-1) for pending in owed]).sum(0)
        torch.testing.assert_close(given[0][name] + debt, came_in, rtol=1e-5, atol=2e-5)
