"""Residuals belong to a tensor's elements: how buckets are made up may change from call to call."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from gradwire import FP16, Compressor, Int8, OneBit, RandomK, TopK
from gradwire.backends import BucketReducer, Transport, run_ranks
from support.bucketing import TENSORS, Bucket, Totals, assert_law, bucket, whole
from support.reducing import bits, everything, ids
from support.truncating import Truncated

CODECS: list[Compressor] = [
    TopK(ratio=0.1),
    RandomK(ratio=0.3),
    OneBit(block=16),
    Int8(block=32, stochastic=True, error_feedback=True),
    FP16(error_feedback=True),
    Truncated(),
]
STEPS = 6


class Call(NamedTuple):
    """One bucket, reduced to everybody or, with `bounds`, to owners."""

    bucket: Bucket
    bounds: list[int] | None


def pieces(random: random.Random) -> list[tuple[str, int, int]]:
    """Some of the tensors, cut at random places, in a random order."""
    found = []
    for name in random.sample(list(TENSORS), random.randint(1, len(TENSORS))):
        numel = math.prod(TENSORS[name])
        edges = sorted({0, numel, *(random.randint(0, numel) for _ in range(random.choice([0, 0, 1, 3])))})
        found += [(name, low, high) for low, high in pairwise(edges)]
    return random.sample(found, len(found))


def plan(seed: int, world_size: int) -> list[list[Call]]:
    """Calls by step; no element comes twice in a step."""
    chance, steps = random.Random(seed), []
    for _ in range(STEPS):
        left, calls = pieces(chance), []
        while left:
            taken = chance.randint(1, len(left))
            filled = bucket(left[:taken], gap=chance.randint(0, 3))
            inner = sorted(chance.randint(0, filled.numel) for _ in range(world_size - 1))
            calls.append(Call(filled, [0, *inner, filled.numel] if chance.random() < 0.5 else None))
            left = left[taken:]
        steps.append(calls)
    return steps


def reduced(reducer: BucketReducer, call: Call, step: int) -> torch.Tensor:
    """The mean, as far as this rank gets it; what it does not get is zero."""
    flat = call.bucket.filled(reducer.transport.rank, step)
    if call.bounds is None:
        reducer.all_reduce(flat, call.bucket.parts)
        return flat
    low, high = call.bounds[reducer.transport.rank : reducer.transport.rank + 2]
    given = torch.zeros_like(flat)
    reducer.reduce_scatter(flat, call.bucket.parts, call.bounds, given[low:high])
    return given


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("exchange", ["auto", "gather", "two_phase"])
def test_nothing_is_lost_whatever_comes_in_which_bucket(exchange: str, world_size: int, seed: int) -> None:
    steps = plan(seed, world_size)

    def rank_main(transport: Transport) -> list[tuple[Totals, Totals]]:
        return [play(codec, number, transport) for number, codec in enumerate(CODECS)]

    def play(codec: Compressor, number: int, transport: Transport) -> tuple[Totals, Totals]:
        reducer = BucketReducer(everything(codec), transport, name=f"r{number}", exchange=exchange)
        given: Totals = {}
        for step, calls in enumerate(steps):
            for call in calls:
                flat = reduced(reducer, call, step)
                if call.bounds is None and transport.rank > 0:
                    flat.zero_()  # equal on all ranks; that is tested elsewhere
                call.bucket.add_to(given, flat)
            reducer.commit()
        return given, {name: reducer.pending(name) for name in given}

    exact: Totals = {}
    for step, calls in enumerate(steps):
        for call in calls:
            call.bucket.add_to(exact, call.bucket.exact(world_size, step))
    ranks = run_ranks(world_size, rank_main)
    for number in range(len(CODECS)):
        given = {name: torch.stack([rank[number][0][name] for rank in ranks]).sum(0) for name in exact}
        assert_law([given], [rank[number][1] for rank in ranks], exact)


@pytest.mark.parametrize(
    "codec", [TopK(ratio=0.1), OneBit(block=16), Int8(block=32), FP16(error_feedback=True)], ids=ids
)
@pytest.mark.parametrize("scattered", [False, True])
def test_the_same_tensors_in_other_buckets_give_the_same_bits(codec: Compressor, scattered: bool) -> None:
    """Where every rank's payloads are decoded by all, or all by one owner, a bucket has no influence on a tensor."""

    def rank_main(transport: Transport) -> None:
        together, apart = (
            BucketReducer(everything(codec), transport, name=name, exchange="gather") for name in ("together", "apart")
        )
        for step in range(3):
            expected: Totals = {}
            all_of_them = whole()
            owner = [0, *[all_of_them.numel] * transport.world_size] if scattered else None
            all_of_them.add_to(expected, reduced(together, Call(all_of_them, owner), step))
            names = random.Random(step).sample(list(TENSORS), len(TENSORS))
            found: Totals = {}
            for batch in (names[: step + 1], names[step + 1 :]):
                some = whole({name: TENSORS[name] for name in batch}, gap=step)
                owner = [0, *[some.numel] * transport.world_size] if scattered else None
                some.add_to(found, reduced(apart, Call(some, owner), step))
            together.commit()
            apart.commit()
            for name in TENSORS:
                assert bits(found[name]) == bits(expected[name])
                assert bits(apart.pending(name)) == bits(together.pending(name))

    run_ranks(3, rank_main)


def test_a_tensor_that_stays_away_keeps_its_residual() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(everything(OneBit()), transport, exchange="two_phase")
        first, second = whole({"w1": TENSORS["w1"]}), whole({"w2": TENSORS["w2"]})
        reduced(reducer, Call(first, None), 0)
        reducer.commit()
        before = bits(reducer.pending("w1"))
        assert any(before)
        for step in (1, 2):
            reduced(reducer, Call(second, None), step)
            reducer.commit()
        assert bits(reducer.pending("w1")) == before

    run_ranks(3, rank_main)


def test_plans_that_come_again_are_not_made_again_and_old_ones_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradwire.backends.flat_plans.LIMIT", 2)

    def rank_main(transport: Transport) -> tuple[list[str], int]:
        names: list[str] = []
        reducer = BucketReducer(everything(TopK(ratio=0.1)), transport)
        buckets = [whole({name: TENSORS[name]}) for name in ("w1", "w2", "w3")]
        for index in (0, 1, 0, 2, 0, 1):
            reduced(reducer, Call(buckets[index], None), 0)
            names.append(reducer.statistics.buckets[-1].name)
        return names, len(reducer.statistics.buckets)

    for names, kept in run_ranks(2, rank_main):
        assert names == [f"gradwire.{number}.0" for number in (0, 1, 0, 2, 0, 3)]
        assert kept == 2
