"""A value that is not finite, on one rank in one tensor: no rank applies the step, and nothing remembers it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from gradwire import FP16, Compressor, Int8, NoCompression, OneBit, RandomK, TopK, with_defaults
from gradwire.backends import GradientReducer, Statistics, Transport, run_ranks
from support.reducing import (
    COMPRESSORS,
    SHAPES,
    States,
    assert_ranks_equal,
    assert_states_equal,
    copy_states,
    gradient,
    ids,
    metas,
    one_step,
)

Means = dict[str, torch.Tensor]
EXCHANGES = ("auto", "gather", "two_phase")
#: (rank, tensor, value) of three bad steps: in a compressed tensor, a dense one and a scalar
BAD = ((1, "w1", float("nan")), (0, "b1", float("inf")), (1, "scalar", float("-inf")))
LARGEST = torch.finfo(torch.float32).max


class Played(NamedTuple):
    """What one rank saw."""

    refused: list[Means]
    means: list[Means]
    before: States
    after: States
    final: States
    statistics: Statistics


def play(reducer: GradientReducer, bad: tuple[tuple[int, str, float], ...], donate: bool) -> Played:
    """One clean step, the bad ones, two clean ones."""
    reducer.register(metas(SHAPES))
    means = [one_step(reducer, SHAPES, 0, donate=donate)]
    before = copy_states(reducer)
    refused = [bad_step(reducer, *one, donate) for one in bad]
    after = copy_states(reducer)
    means += [one_step(reducer, SHAPES, step, donate=donate) for step in (1, 2)]
    return Played(refused, means, before, after, copy_states(reducer), reducer.statistics)


def bad_step(reducer: GradientReducer, rank: int, bad_name: str, value: float, donate: bool) -> Means:
    for name, shape in SHAPES.items():
        grad = gradient(name, shape, reducer.transport.rank, 99)
        if reducer.transport.rank == rank and name == bad_name:
            grad.view(-1)[-1] = value
        reducer.ready(name, grad, donate=donate)
    return {name: reducer.wait(name) for name in SHAPES}


def assert_never_happened(clean: Played, played: Played) -> None:
    assert all(mean.isnan().all() for means in played.refused for mean in means.values())
    assert_states_equal(played.after, played.before)
    assert_ranks_equal([clean.means, played.means])
    assert_states_equal(played.final, clean.final)
    assert (played.statistics.steps, played.statistics.skipped_steps) == (3, len(BAD))
    assert (clean.statistics.steps, clean.statistics.skipped_steps) == (3, 0)


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=ids)
def test_a_refused_step_never_happened(compressor: Compressor, world_size: int, donate: bool) -> None:
    exchanges = EXCHANGES[1:] if isinstance(compressor, NoCompression) else EXCHANGES

    def rank_main(transport: Transport) -> list[tuple[Played, Played]]:
        pairs = []
        for exchange in exchanges:
            clean = GradientReducer(compressor, transport, name="clean", exchange=exchange, bucket_bytes=6000)
            other = GradientReducer(compressor, transport, name="other", exchange=exchange, bucket_bytes=6000)
            pairs.append((play(clean, (), donate), play(other, BAD, donate)))
        return pairs

    ranks = run_ranks(world_size, rank_main)
    for pairs in ranks:
        for clean, played in pairs:
            assert_never_happened(clean, played)
    for index in range(len(exchanges)):
        assert_ranks_equal([pairs[index][1].means for pairs in ranks])


@pytest.mark.parametrize("world_size", [2, 3])
def test_where_nothing_is_compressed_sums_pass_as_they_are(world_size: int) -> None:
    def rank_main(transport: Transport) -> Means:
        reducer = GradientReducer(NoCompression(), transport)
        reducer.register(metas(SHAPES))
        return bad_step(reducer, 1, "w1", float("inf"), donate=False)

    for means in run_ranks(world_size, rank_main):
        assert means["w1"].view(-1)[-1] == float("inf")
        assert all(torch.isfinite(mean).all() for name, mean in means.items() if name != "w1")


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("compressor", [TopK(ratio=0.1), RandomK(ratio=0.1)], ids=ids)
def test_a_residual_that_overflows_with_the_gradient_refuses_the_step(compressor: Compressor, exchange: str) -> None:
    """g and e are finite, g + e is not; the residual survives, and a gradient of opposite sign gets through."""

    def rank_main(transport: Transport) -> list[Means]:
        reducer = GradientReducer(compressor, transport, exchange=exchange)
        reducer.register(metas({"w": (40, 40)}))
        means = []
        for value in (0.9 * LARGEST, 0.9 * LARGEST, -0.9 * LARGEST, *range(20)):
            reducer.ready("w", torch.full((40, 40), float(value if transport.rank == 0 else 0)), donate=True)
            means.append({"w": reducer.wait("w")})
        assert (reducer.step, reducer.statistics.skipped_steps) == (22, 1)
        return means

    ranks = run_ranks(2, rank_main)
    assert_ranks_equal(ranks)
    for step, means in enumerate(ranks[0]):
        assert means["w"].isnan().all() if step == 1 else torch.isfinite(means["w"]).all()


@pytest.mark.parametrize("compressor", [c for c in COMPRESSORS if with_defaults(c).elementwise_state], ids=ids)
def test_twenty_clean_steps_follow_one_infinite_value(compressor: Compressor) -> None:
    def rank_main(transport: Transport) -> list[Means]:
        reducer = GradientReducer(compressor, transport)
        reducer.register(metas(SHAPES))
        means = [one_step(reducer, SHAPES, step) for step in range(5)]
        bad_step(reducer, 1, "w2", float("inf"), donate=True)
        return means + [one_step(reducer, SHAPES, step, donate=True) for step in range(5, 25)]

    ranks = run_ranks(2, rank_main)
    assert_ranks_equal(ranks)
    assert all(torch.isfinite(mean).all() for means in ranks[0] for mean in means.values())


@pytest.mark.parametrize("compressor", [FP16(error_feedback=True), Int8(), TopK(ratio=0.1)], ids=ids)
def test_16_bit_gradients_are_refused_alike(compressor: Compressor) -> None:
    def rank_main(transport: Transport) -> Means:
        reducer = GradientReducer(compressor, transport)
        reducer.register(metas({"w": (40, 40), "b": (40,)}, torch.bfloat16))
        for name, shape in {"w": (40, 40), "b": (40,)}.items():
            grad = gradient(name, shape, transport.rank, 0, torch.bfloat16)
            if transport.rank == 1 and name == "b":
                grad[0] = float("inf")
            reducer.ready(name, grad)
        means = {name: reducer.wait(name) for name in ("w", "b")}
        assert reducer.step == 0
        return means

    for means in run_ranks(2, rank_main):
        assert all(mean.isnan().all() and mean.dtype == torch.bfloat16 for mean in means.values())


@pytest.mark.parametrize("exchange", ["auto", "two_phase", "sparse", "hierarchical"])
@pytest.mark.parametrize("compressor", [OneBit(), Int8(), FP16(), TopK(ratio=0.1)], ids=ids)
@pytest.mark.parametrize("place", [0, 2047, 4095])
def test_a_first_step_is_refused_wherever_in_a_tensor_the_value_is(
    compressor: Compressor, exchange: str, place: int
) -> None:
    """There is no residual yet, and only one of the tensor's pieces is not finite."""
    if exchange == "sparse" and not compressor.sparse:
        pytest.skip("for codecs that choose entries")
    shapes = {"w": (64, 64)}

    def rank_main(transport: Transport) -> list[Means]:
        played = []
        for bad in (True, False):
            reducer = GradientReducer(compressor, transport, exchange=exchange, name=f"r{bad}", timeout=20)
            reducer.register(metas(shapes))
            if bad:
                grad = gradient("w", shapes["w"], transport.rank, 99)
                grad.view(-1)[place] = float("inf") if transport.rank == 1 else 1.0
                reducer.ready("w", grad)
                assert bool(reducer.wait("w").isnan().all())
            played.append([one_step(reducer, shapes, step) for step in range(2)])
        for mine, clean in zip(*played, strict=True):
            assert torch.equal(mine["w"], clean["w"])
        return played[0]

    assert_ranks_equal(run_ranks(4, rank_main, hosts=(0, 0, 1, 1)))
