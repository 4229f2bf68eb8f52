"""Steps of flat buckets: kept or undone as a whole; a bucket that is not finite moves nothing on any rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gradwire import FP16, Compressor, Int8, NoCompression, OneBit, RandomK, TopK, UsageError
from gradwire.backends import BucketReducer, Part, Transport, run_ranks
from support.bucketing import TENSORS, Totals, assert_law, even_bounds, kept_bits, pending_bits, whole
from support.reducing import bits, everything, ids
from support.truncating import Truncated

CODECS: list[Compressor] = [
    NoCompression(),
    FP16(),
    TopK(ratio=0.1),
    RandomK(ratio=0.3),
    OneBit(block=16),
    Int8(block=32),
    Int8(stochastic=True),
    Truncated(),
]
WHOLE = whole()
CALLS = ("auto", "gather", "two_phase", "reduce_scatter")

Operation = Callable[[BucketReducer, torch.Tensor], torch.Tensor]


def made(codec: Compressor, transport: Transport, call: str, name: str) -> tuple[BucketReducer, Operation]:
    """A reducer, and a call that gives this rank's result."""
    if call != "reduce_scatter":
        return BucketReducer(everything(codec), transport, name=name, exchange=call), _reduce
    return BucketReducer(everything(codec), transport, name=name), _scatter


def _reduce(reducer: BucketReducer, flat: torch.Tensor) -> torch.Tensor:
    reducer.all_reduce(flat, WHOLE.parts)
    return flat


def _scatter(reducer: BucketReducer, flat: torch.Tensor) -> torch.Tensor:
    bounds = even_bounds(WHOLE.numel, reducer.transport.world_size)
    out = torch.empty(bounds[reducer.transport.rank + 1] - bounds[reducer.transport.rank])
    reducer.reduce_scatter(flat, WHOLE.parts, bounds, out)
    return out


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_step_that_was_rolled_back_has_never_been(world_size: int, call: str) -> None:
    def rank_main(transport: Transport) -> None:
        for number, codec in enumerate(CODECS):
            undone, operation = made(codec, transport, call, f"undone{number}")
            straight, _ = made(codec, transport, call, f"straight{number}")
            for reducer in (undone, straight):
                operation(reducer, WHOLE.filled(transport.rank, 0))
                reducer.commit()
            before = kept_bits(undone)
            for step in (7, 8):
                operation(undone, WHOLE.filled(transport.rank, step))
            undone.rollback()
            assert kept_bits(undone) == before
            for step in (1, 2):
                results = [operation(reducer, WHOLE.filled(transport.rank, step)) for reducer in (undone, straight)]
                assert bits(results[0]) == bits(results[1])
            assert kept_bits(undone) == kept_bits(straight)
            assert (undone.step, undone.statistics.skipped_steps) == (1, 1)

    run_ranks(world_size, rank_main)


def test_a_rollback_forgets_tensors_that_came_first_in_the_step() -> None:
    def rank_main(transport: Transport) -> None:
        reducer, operation = made(OneBit(), transport, "two_phase", "r")
        operation(reducer, WHOLE.filled(transport.rank, 0))
        assert any(any(value) for value in pending_bits(reducer, TENSORS).values())
        reducer.rollback()
        assert not any(any(value) for value in pending_bits(reducer, TENSORS).values())
        assert kept_bits(reducer) == {}

    run_ranks(3, rank_main)


def test_a_reset_forgets_what_was_committed_too() -> None:
    def rank_main(transport: Transport) -> None:
        reducer, operation = made(OneBit(), transport, "two_phase", "r")
        operation(reducer, WHOLE.filled(transport.rank, 0))
        reducer.commit()
        operation(reducer, WHOLE.filled(transport.rank, 1))
        reducer.reset()
        reducer.rollback()
        assert not any(any(value) for value in pending_bits(reducer, TENSORS).values())
        assert kept_bits(reducer) == {}

    run_ranks(3, rank_main)


@pytest.mark.parametrize("call", ["two_phase", "auto"])
def test_later_calls_of_a_step_see_what_earlier_ones_left_out(call: str) -> None:
    """As where gradients are accumulated: the law holds without a commit in between."""

    def rank_main(transport: Transport) -> tuple[Totals, Totals]:
        reducer, operation = made(TopK(ratio=0.1), transport, call, "r")
        given: Totals = {}
        for step in range(3):
            WHOLE.add_to(given, operation(reducer, WHOLE.filled(transport.rank, step)))
        assert reducer.step == 0
        return given, {name: reducer.pending(name) for name in TENSORS}

    ranks = run_ranks(3, rank_main)
    exact: Totals = {}
    for step in range(3):
        WHOLE.add_to(exact, WHOLE.exact(3, step))
    assert_law([given for given, _ in ranks], [owed for _, owed in ranks], exact)


def test_a_commit_without_a_call_is_no_step() -> None:
    def rank_main(transport: Transport) -> None:
        reducer, operation = made(TopK(ratio=0.1), transport, "auto", "r")
        reducer.commit()
        reducer.rollback()
        assert (reducer.step, reducer.statistics.skipped_steps) == (0, 0)
        operation(reducer, WHOLE.filled(transport.rank, 0))
        reducer.commit()
        reducer.commit()
        reducer.rollback()
        assert (reducer.step, reducer.statistics.skipped_steps) == (1, 0)

    run_ranks(2, rank_main)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_value_that_is_not_finite_on_one_rank_is_nan_on_all(world_size: int, call: str, value: float) -> None:
    """Nothing moves, whichever tensor has it; and the next bucket is reduced as if there had been none."""

    def rank_main(transport: Transport) -> None:
        for number, codec in enumerate(CODECS):
            struck, operation = made(codec, transport, call, f"struck{number}")
            clean, _ = made(codec, transport, call, f"clean{number}")
            for reducer in (struck, clean):
                operation(reducer, WHOLE.filled(transport.rank, 0))
                reducer.commit()
            before = kept_bits(struck)
            for guilty, part in enumerate(WHOLE.parts):
                flat = WHOLE.filled(transport.rank, 1)
                if transport.rank == guilty % world_size:
                    flat[part.stop - 1] = value
                assert operation(struck, flat).isnan().all()
                assert kept_bits(struck) == before
            struck.rollback()
            results = [operation(reducer, WHOLE.filled(transport.rank, 2)) for reducer in (struck, clean)]
            assert bits(results[0]) == bits(results[1])
            assert kept_bits(struck) == kept_bits(clean)

    run_ranks(world_size, rank_main)


def test_a_refused_call_undoes_none_of_the_others() -> None:
    def rank_main(transport: Transport) -> None:
        reducer, operation = made(OneBit(), transport, "two_phase", "r")
        operation(reducer, WHOLE.filled(transport.rank, 0))
        before = kept_bits(reducer)
        operation(reducer, torch.full((WHOLE.numel,), float("nan")))
        reducer.commit()
        assert kept_bits(reducer) == before
        assert reducer.step == 1

    run_ranks(3, rank_main)


@pytest.mark.parametrize("factor", [2.0**-10, 0.5, 4.0, 2.0**16])
@pytest.mark.parametrize("call", CALLS)
def test_gradients_and_residuals_times_a_power_of_two_give_the_same_bits_times_it(call: str, factor: float) -> None:
    def rank_main(transport: Transport) -> None:
        for number, codec in enumerate([TopK(ratio=0.1), RandomK(ratio=0.3), OneBit(block=16), Int8(block=32)]):
            plain, operation = made(codec, transport, call, f"plain{number}")
            scaled, _ = made(codec, transport, call, f"scaled{number}")
            for reducer in (plain, scaled):
                operation(reducer, WHOLE.filled(transport.rank, 0))
                reducer.commit()
            scaled.rescale(factor)
            for name in TENSORS:
                assert bits(scaled.pending(name)) == bits(plain.pending(name) * factor)
            expected = operation(plain, WHOLE.filled(transport.rank, 1)) * factor
            assert bits(operation(scaled, WHOLE.filled(transport.rank, 1) * factor)) == bits(expected)
            for name in TENSORS:
                assert bits(scaled.pending(name)) == bits(plain.pending(name) * factor)

    run_ranks(3, rank_main)


def test_a_rollback_after_a_rescale_leads_to_rescaled_residuals() -> None:
    """An overflow halves the loss scale and drops the step, in either order."""

    def rank_main(transport: Transport) -> None:
        reducer, operation = made(OneBit(), transport, "two_phase", "r")
        operation(reducer, WHOLE.filled(transport.rank, 0))
        reducer.commit()
        expected = {name: bits(reducer.pending(name) * 0.5) for name in TENSORS}
        operation(reducer, WHOLE.filled(transport.rank, 1))
        reducer.rescale(0.5)
        reducer.rollback()
        assert pending_bits(reducer, TENSORS) == expected

    run_ranks(3, rank_main)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_a_factor_that_would_spoil_residuals_is_refused(factor: float) -> None:
    def rank_main(transport: Transport) -> None:
        with pytest.raises(UsageError, match="above 0"):
            BucketReducer(TopK(), transport).rescale(factor)

    run_ranks(1, rank_main)


def test_values_out_of_range_are_counted_over_pieces_and_calls() -> None:
    """Five values in each of two calls, all on rank 0; the tensor comes in two pieces."""
    parts = [Part("w", (10, 10), 0, 40), Part("w", (10, 10), 40, 60, 40)]

    def rank_main(transport: Transport) -> int:
        reducer = BucketReducer(FP16(), transport, exchange="gather")
        for _ in range(2):
            flat = torch.zeros(100)
            flat[[0, 39, 40, 41, 99]] = 1e6 if transport.rank == 0 else 0.0
            reducer.all_reduce(flat, parts)
        return reducer.statistics.saturated

    assert run_ranks(3, rank_main) == [10, 0, 0]


@pytest.mark.parametrize("codec", [TopK(ratio=0.1), OneBit()], ids=ids)
def test_what_is_owed_of_an_unknown_tensor_is_refused(codec: Compressor) -> None:
    def rank_main(transport: Transport) -> None:
        with pytest.raises(UsageError, match="'w9'"):
            BucketReducer(codec, transport).pending("w9")

    run_ranks(1, rank_main)
