"""The reducer over ranks that are threads: every compressor, every exchange, every world size."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch
from gradwire import Compressor, NoCompression
from gradwire.backends import GradientReducer, Transport, run_ranks
from support.reducing import (
    COMPRESSORS,
    SHAPES,
    assert_ranks_equal,
    bits,
    everything,
    exact_mean,
    gradient,
    ids,
    metas,
    one_step,
    run_steps,
)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=ids)
def test_ranks_end_bitwise_equal(compressor: Compressor, world_size: int) -> None:
    assert_ranks_equal(run_steps(compressor, SHAPES, world_size))


@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=ids)
def test_ranks_end_bitwise_equal_by_any_exchange(compressor: Compressor, exchange: str) -> None:
    assert_ranks_equal(run_steps(compressor, SHAPES, 3, exchange=exchange))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_without_compression_the_mean_is_exact(world_size: int, dtype: torch.dtype) -> None:
    near = 4 * torch.finfo(dtype).eps
    for step, means in enumerate(run_steps(NoCompression(), SHAPES, world_size, dtype=dtype)[0]):
        for name, shape in SHAPES.items():
            assert means[name].dtype == dtype
            assert means[name].shape == shape
            torch.testing.assert_close(
                means[name].double(), exact_mean(name, shape, world_size, step, dtype), rtol=near, atol=near
            )


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=ids)
def test_one_rank_alone_keeps_its_gradients_bit_for_bit(compressor: Compressor) -> None:
    for step, means in enumerate(run_steps(compressor, SHAPES, 1)[0]):
        for name, shape in SHAPES.items():
            assert bits(means[name]) == bits(gradient(name, shape, 0, step))


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=ids)
def test_a_different_backward_order_on_every_rank_changes_nothing(
    compressor: Compressor, ordered: bool, donate: bool
) -> None:
    orders = [random.Random(rank).sample(list(SHAPES), len(SHAPES)) for rank in range(3)]
    small = {"bucket_bytes": 2000, "ordered": ordered}
    expected = run_steps(compressor, SHAPES, 3, **small)
    actual = run_steps(compressor, SHAPES, 3, orders=orders, donate=donate, **small)
    assert_ranks_equal([*expected, *actual])


@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=ids)
def test_every_size_is_right_at_every_world_size(compressor: Compressor, world_size: int, exchange: str) -> None:
    """What was given plus what is still owed equals what came in."""
    shapes = {f"t{numel}": (numel,) for numel in range(1, 41)}
    codec = everything(compressor)

    def rank_main(transport: Transport) -> list[dict[str, torch.Tensor]]:
        reducer = GradientReducer(codec, transport, exchange=exchange)
        reducer.register(metas(shapes))
        means = [one_step(reducer, shapes, step) for step in range(2)]
        given = {name: sum_of(step[name] for step in means) for name in shapes}
        return [given, {name: reducer.pending(name) for name in shapes}]

    ranks = run_ranks(world_size, rank_main)
    for name, shape in shapes.items():
        came_in = sum_of(exact_mean(name, shape, world_size, step) for step in range(2))
        owed = sum_of(rank[1][name] for rank in ranks)
        if codec.elementwise_state or isinstance(codec, NoCompression):
            torch.testing.assert_close(ranks[0][0][name] + owed, came_in, rtol=1e-5, atol=1e-5)
        assert torch.isfinite(ranks[0][0][name]).all()


def sum_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.stack([tensor.double() for tensor in tensors]).sum(0)
