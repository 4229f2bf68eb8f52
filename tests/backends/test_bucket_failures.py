"""Flat buckets that go wrong: the same on every rank where it can be, nothing moves, and the next call works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradwire import ConfigError, PeerError, TopK, TransportError, UsageError
from gradwire.backends import BucketReducer, Part, Transport, run_ranks
from support.bucketing import even_bounds, kept_bits, whole
from support.reducing import bits, everything
from support.truncating import Trap, Truncated

LIMIT = 5.0
WHOLE = whole()


def _exchange(call: str) -> str:
    return "auto" if call == "reduce_scatter" else call


def _call(reducer: BucketReducer, call: str, flat: torch.Tensor) -> torch.Tensor:
    if call != "reduce_scatter":
        reducer.all_reduce(flat, WHOLE.parts)
        return flat
    bounds = even_bounds(WHOLE.numel, reducer.transport.world_size)
    out = torch.empty(bounds[reducer.transport.rank + 1] - bounds[reducer.transport.rank])
    reducer.reduce_scatter(flat, WHOLE.parts, bounds, out)
    return out


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    ("call", "sums"), [("gather", False), ("two_phase", False), ("reduce_scatter", False), ("all_reduce", True)]
)
def test_a_codec_that_raises_on_one_rank(call: str, sums: bool, world_size: int) -> None:
    """The others get an error too; where sums have no room for words they get NaN. Then all goes on."""

    def rank_main(transport: Transport, failing: int) -> bytes:
        codec = everything(Truncated(sums=sums, trap=(trap := Trap(rank=failing, step=1, tensor="w2"))))
        reducer = BucketReducer(codec, transport, exchange=_exchange(call), timeout=LIMIT)
        _call(reducer, call, WHOLE.filled(transport.rank, 0))
        before = kept_bits(reducer)
        if failing < 0:
            return bits(_call(reducer, call, WHOLE.filled(transport.rank, 2)))
        if transport.rank == failing:
            with pytest.raises(ArithmeticError, match="truncated"):
                _call(reducer, call, WHOLE.filled(transport.rank, 1))
        elif sums:
            assert _call(reducer, call, WHOLE.filled(transport.rank, 1)).isnan().all()
        else:
            with pytest.raises(PeerError, match=f"rank {failing}"):
                _call(reducer, call, WHOLE.filled(transport.rank, 1))
        assert kept_bits(reducer) == before
        trap.rank = -1
        return bits(_call(reducer, call, WHOLE.filled(transport.rank, 2)))

    for failing in range(world_size):
        repaired = run_ranks(world_size, lambda transport, failing=failing: rank_main(transport, failing))
        clean = run_ranks(world_size, lambda transport: rank_main(transport, -1))
        assert repaired == clean


def test_after_a_failed_collective_there_is_no_further_call() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(everything(TopK(ratio=0.1)), transport, timeout=0.2)
        _call(reducer, "all_reduce", WHOLE.filled(transport.rank, 0))
        if transport.rank == 0:
            return
        before = kept_bits(reducer)
        for words in ("rank 0", "no further call"):
            with pytest.raises(TransportError, match=words):
                _call(reducer, "all_reduce", WHOLE.filled(transport.rank, 1))
        assert kept_bits(reducer) == before

    run_ranks(2, rank_main)


def refused(call: Callable[[BucketReducer], None], words: str) -> None:
    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(TopK(ratio=0.1), transport)
        reducer.all_reduce(torch.ones(8), [Part("w", (4, 2), 0, 8)])
        with pytest.raises(UsageError, match=words):
            call(reducer)

    run_ranks(1, rank_main)


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        (torch.ones(2, 4), "2, 4"),
        (torch.ones(16)[::2], "contiguous"),
        (torch.ones(8, dtype=torch.float64), "float64"),
        (torch.ones(8, dtype=torch.int32), "int32"),
    ],
)
def test_what_is_no_flat_bucket_is_refused(flat: torch.Tensor, words: str) -> None:
    refused(lambda reducer: reducer.all_reduce(flat, []), words)
    refused(lambda reducer: reducer.reduce_scatter(flat, [], [0, flat.numel()], torch.ones(8)), words)
    refused(lambda reducer: reducer.reduce_scatter(torch.ones(8), [], [0, 8], flat), words)


@pytest.mark.parametrize("bounds", [[0, 4], [1, 8], [8], [], [0, 4, 8], [0, 9]])
def test_bounds_that_do_not_cover_the_bucket_are_refused(bounds: list[int]) -> None:
    refused(lambda reducer: reducer.reduce_scatter(torch.ones(8), [], bounds, torch.ones(8)), "bounds are")


def test_out_of_another_length_is_refused() -> None:
    refused(lambda reducer: reducer.reduce_scatter(torch.ones(8), [], [0, 8], torch.ones(7)), "vector of 8 elements")


def test_parts_that_do_not_fit_are_refused() -> None:
    refused(lambda reducer: reducer.all_reduce(torch.ones(4), [Part("v", (8,), 0, 8)]), "does not fit")


def test_a_tensor_keeps_its_shape() -> None:
    refused(
        lambda reducer: reducer.all_reduce(torch.ones(8), [Part("w", (8,), 0, 8)]), r"\(8,\) here, and was \(4, 2\)"
    )


def test_a_tensor_may_not_be_named_like_a_piece_of_another() -> None:
    parts = [Part("w", (4, 2), 0, 4), Part("w[0:4]", (4,), 4, 4)]
    refused(lambda reducer: reducer.all_reduce(torch.ones(8), parts), "named like a piece")


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"exchange": "ring"}, {"exchange": "all_reduce"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    def rank_main(transport: Transport) -> None:
        with pytest.raises(ConfigError, match=next(iter(options))):
            BucketReducer(TopK(), transport, **options)

    run_ranks(1, rank_main)
