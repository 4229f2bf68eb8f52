"""A gradient that a rank does not make ready counts as zeros, and its residual is still released."""

from __future__ import annotations

import random

import pytest
import torch
from gradwire import Compressor, TopK
from gradwire.backends import GradientReducer, Transport, run_ranks
from support.reducing import COMPRESSORS, assert_ranks_equal, bits, everything, gradient, ids, metas

BRANCHES = {f"branch{number}": (8, 9 + number) for number in range(12)} | {"bias": (5,)}


def used(rank: int, step: int) -> list[str]:
    """A random part of the branches, in random order; in some steps nothing at all."""
    chance = random.Random(f"{rank} {step}")
    return chance.sample(list(BRANCHES), chance.randrange(len(BRANCHES)) if step % 5 else 0)


def play(reducer: GradientReducer, steps: int, explicit: bool) -> list[dict[str, torch.Tensor]]:
    reducer.register(metas(BRANCHES))
    means = []
    for step in range(steps):
        names = used(reducer.transport.rank, step)
        for name in names:
            reducer.ready(name, gradient(name, BRANCHES[name], reducer.transport.rank, step))
        for name in BRANCHES.keys() - set(names) if explicit else ():
            reducer.ready(name, torch.zeros(BRANCHES[name]))
        reducer.flush()
        means.append({name: reducer.wait(name) for name in sorted(BRANCHES)})
    assert (reducer.step, reducer.statistics.skipped_steps) == (steps, 0)
    return means


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=ids)
def test_a_missing_gradient_counts_as_zeros(compressor: Compressor) -> None:
    codec = everything(compressor)

    def rank_main(transport: Transport) -> list[dict[str, torch.Tensor]]:
        implicit = GradientReducer(codec, transport, name="implicit", bucket_bytes=1000)
        explicit = GradientReducer(codec, transport, name="explicit", bucket_bytes=1000)
        return play(implicit, 6, explicit=False) + play(explicit, 6, explicit=True)

    ranks = run_ranks(3, rank_main, ordered=False)
    assert_ranks_equal(ranks)
    assert_ranks_equal([ranks[0][:6], ranks[0][6:]])


@pytest.mark.parametrize(("exchange", "ordered"), [("gather", False), ("two_phase", True)])
def test_thirty_steps_in_random_order_with_random_parts_missing(exchange: str, ordered: bool) -> None:
    codec = everything(TopK(ratio=0.2))

    def rank_main(transport: Transport) -> list[dict[str, torch.Tensor]]:
        options = {"bucket_bytes": 1500, "exchange": exchange}
        implicit = GradientReducer(codec, transport, name="implicit", **options)
        explicit = GradientReducer(codec, transport, name="explicit", **options)
        return play(implicit, 30, explicit=False) + play(explicit, 30, explicit=True)

    ranks = run_ranks(2, rank_main, ordered=ordered)
    assert_ranks_equal(ranks)
    assert_ranks_equal([ranks[0][:30], ranks[0][30:]])


def test_a_missing_gradient_releases_its_residual() -> None:
    """Half of the entries go in the step with the gradient, the other half in the next one, which has none."""
    gradients = [gradient("w", (10, 10), rank, 0) for rank in range(2)]

    def rank_main(transport: Transport) -> torch.Tensor:
        reducer = GradientReducer(everything(TopK(ratio=0.5)), transport)
        reducer.register(metas({"w": (10, 10)}))
        reducer.ready("w", gradients[transport.rank])
        first = reducer.wait("w").clone()
        assert reducer.pending("w").any()
        reducer.flush()
        total = first + reducer.wait("w")
        assert not reducer.pending("w").any()
        return total

    first, second = run_ranks(2, rank_main)
    assert bits(first) == bits(second)
    torch.testing.assert_close(first, torch.stack(gradients).mean(0))


def test_a_tensor_that_no_rank_makes_ready_has_a_mean_of_zero() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(everything(TopK(ratio=0.5)), transport)
        reducer.register(metas({"w": (10, 10), "unused": (10, 10)}))
        for step in range(3):
            reducer.ready("w", gradient("w", (10, 10), transport.rank, step))
            assert reducer.wait("w").any()
            assert not reducer.wait("unused").any()

    run_ranks(2, rank_main)
