"""Ranks that differ in what they average: the same error on every rank, within seconds, in place of a hang."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradwire import MismatchError, OneBit, TopK
from gradwire.backends import BucketReducer, Part, TorchTransport
from support.zero import Terms, assert_ranks_equal, config, initialize, train

from .conftest import Attach

#: where a test that hangs would be ended
TIMEOUT = 60.0
#: within which all ranks know
SECONDS = 10.0


@contextmanager
def mismatch(words: str) -> Iterator[None]:
    """The error comes on every rank, with the same text, and soon."""
    begun = time.monotonic()
    with pytest.raises(MismatchError, match=words) as caught:
        yield
    assert time.monotonic() - begun < SECONDS
    texts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(texts, str(caught.value))
    assert len(set(texts)) == 1


def is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


class Choosing(Terms):
    """Uses some of the terms only, or in another order: then other gradients come, in another order."""

    chosen: Sequence[int] = range(5)

    def forward(self, batch: int) -> torch.Tensor:
        return sum((self.terms[index](batch) for index in self.chosen), torch.zeros(()))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("stage", "other"), [(1, (0, 1, 3, 4)), (2, (0, 1, 3, 4)), (2, (4, 3, 2, 1, 0))])
def test_buckets_that_differ_after_some_equal_steps(
    stage: int, other: Sequence[int], known: bool, compress: Attach
) -> None:
    """Also where every rank has met both kinds of buckets before.

    At stage 0 DeepSpeed averages zeros for what has no gradient; at stage 3 its own gathers of parameters hang.
    """
    model = Choosing()
    engine = initialize(model, config(stage))
    compress(engine, TopK(ratio=0.05), timeout=TIMEOUT)
    train(engine, 2)
    if known:
        model.chosen = other
        train(engine, 2, first=2)
        model.chosen = Choosing.chosen
        train(engine, 1, first=4)
    assert_ranks_equal(engine)
    if is_last():
        model.chosen = other
    with mismatch("rank 0 has «all_reduce.*terms.*», rank . has «all_reduce.*terms"):
        train(engine, 1, first=5)


ALL, FEWER = [Part("w", (64, 64), 0, 4096), Part("v", (8,), 4096, 8)], [Part("w", (64, 64), 0, 4096)]
CALLS: dict[str, dict[str, Any]] = {
    "all_reduce": {},
    "to owners": {"bounds": True},
    "exact": {"exact": True},
    "shorter": {"numel": 4104},
    "fewer parts": {"parts": FEWER},
    "in bf16": {"dtype": torch.bfloat16},
}


def call(
    reducer: BucketReducer,
    numel: int = 4110,
    parts: Sequence[Part] = ALL,
    dtype: torch.dtype = torch.float32,
    bounds: bool = False,
    exact: bool = False,
) -> None:
    flat = torch.ones(numel, dtype=dtype)
    if not bounds:
        reducer.all_reduce(flat, parts, exact=exact)
        return
    rank, world_size = dist.get_rank(), dist.get_world_size()
    places = [numel * number // world_size for number in range(world_size + 1)]
    reducer.reduce_scatter(flat, parts, places, flat[places[rank] : places[rank + 1]], exact=exact)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("other", [name for name in CALLS if name != "all_reduce"])
def test_calls_that_differ(other: str, known: bool) -> None:
    """Gloo pairs collectives by their order alone, and ends the process where sizes differ."""
    reducer = BucketReducer(OneBit(), TorchTransport(), timeout=TIMEOUT)
    call(reducer)
    if known:
        call(reducer, **CALLS[other])
    reducer.commit()
    with mismatch("rank 0 has «all_reduce: 4110 torch.float32, 2 parts from 'w' to 'v'», rank . has «"):
        call(reducer, **CALLS[other if is_last() else "all_reduce"])
    call(reducer)
