"""From 1 to 9 ranks, whatever the size of the tensors: what was given and what is owed add up."""

from __future__ import annotations

import gc
import random

import pytest
import torch
from gradwire import Compressor, Int8, NoCompression, OneBit, RandomK, TopK
from gradwire.backends import GradientReducer, Transport, run_ranks
from support.reducing import (
    Shapes,
    assert_ranks_equal,
    everything,
    exact_mean,
    gradient,
    metas,
    one_step,
    run_steps,
)

SIZES: Shapes = {f"t{numel}": (numel,) for numel in (0, 1, 2, 3, 7, 8, 9, 255, 257, 1000)} | {"scalar": ()}
CODECS: list[Compressor] = [
    NoCompression(),
    TopK(ratio=0.1),
    RandomK(ratio=0.3),
    OneBit(block=8),
    OneBit(block=None),
    Int8(block=64),
    Int8(block=256),
]
STEPS = 2


@pytest.mark.parametrize("world_size", range(1, 10))
@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
def test_any_size_at_any_world_size(exchange: str, world_size: int) -> None:
    def rank_main(transport: Transport) -> list[tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]]:
        return [play(compressor, number, transport) for number, compressor in enumerate(CODECS)]

    def play(
        compressor: Compressor, number: int, transport: Transport
    ) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
        reducer = GradientReducer(
            everything(compressor), transport, name=f"r{number}", exchange=exchange, bucket_bytes=900
        )
        reducer.register(metas(SIZES))
        means = [
            {name: mean.clone() for name, mean in one_step(reducer, SIZES, step, donate=step == 1).items()}
            for step in range(STEPS)
        ]
        return means, {name: reducer.pending(name) for name in SIZES}

    ranks = run_ranks(world_size, rank_main)
    for number in range(len(CODECS)):
        assert_ranks_equal([rank[number][0] for rank in ranks])
        for name, shape in SIZES.items():
            came_in = sum(exact_mean(name, shape, world_size, step) for step in range(STEPS))
            given = sum(means[name].double() for means in ranks[0][number][0])
            owed = torch.stack([rank[number][1][name].double() for rank in ranks]).sum(0)
            torch.testing.assert_close(given + owed, came_in, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("compressor", "ordered"), [(NoCompression(), True), (TopK(ratio=0.3), False)])
def test_two_hundred_small_tensors_with_garbage_collected_in_between(compressor: Compressor, ordered: bool) -> None:
    """Buffers belong to the step until their exchange has ended, whatever else lets go of them."""
    shapes = {f"w{number}": (4, 1 + number % 7) for number in range(200)}
    codec = everything(compressor)
    expected = run_steps(codec, shapes, 2, steps=2)

    def rank_main(transport: Transport) -> list[dict[str, torch.Tensor]]:
        reducer = GradientReducer(codec, transport, bucket_bytes=400)
        reducer.register(metas(shapes))
        means = []
        for step in range(2):
            names = random.Random(f"{transport.rank} {step}").sample(list(shapes), len(shapes))
            for name in names:
                reducer.ready(name, gradient(name, shapes[name], transport.rank, step), donate=True)
            gc.collect()
            means.append({name: reducer.wait(name) for name in reversed(names)})
        return means

    assert_ranks_equal([*expected, *run_ranks(2, rank_main, ordered=ordered)])


def test_tensors_without_elements_alone() -> None:
    def rank_main(transport: Transport) -> None:
        for number, compressor in enumerate(CODECS):
            reducer = GradientReducer(compressor, transport, name=f"r{number}")
            reducer.register(metas({"a": (0,), "b": (0, 4)}))
            for donate in (False, True):
                for name, shape in (("a", (0,)), ("b", (0, 4))):
                    reducer.ready(name, torch.empty(shape), donate=donate)
                assert reducer.wait("a").shape == (0,)
                assert reducer.wait("b").shape == (0, 4)
            assert reducer.step == 2

    for world_size in (1, 2, 3):
        run_ranks(world_size, rank_main)
