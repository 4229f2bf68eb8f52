"""Save, load, go on: as if nothing had happened at the same world size, and with nothing lost at another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gradwire import BF16, FP16, Compressor, Int8, NoCompression, OneBit, RandomK, TopK, UsageError
from gradwire.backends import BucketReducer, GradientReducer, Transport, merge_states, run_ranks
from support.bucketing import TENSORS, Totals, assert_law, even_bounds, kept_bits
from support.keeping import MAKERS, WHOLE, Reducer, State, buckets, gradients, play, through_a_file
from support.reducing import bits, exact_mean, gradient, metas, one_step
from support.truncating import Truncated

CODECS: list[Compressor] = [
    NoCompression(),
    FP16(),
    BF16(error_feedback=True),
    TopK(ratio=0.1),
    TopK(ratio=0.2, values=FP16()),
    RandomK(ratio=0.3),
    RandomK(ratio=0.3, error_feedback=False),
    OneBit(block=16),
    Int8(block=32),
    Int8(stochastic=True),
    Truncated(),
]
#: those that lose nothing for good
LAWFUL: list[Compressor] = [TopK(ratio=0.1), RandomK(ratio=0.3), OneBit(block=16), Int8(block=32), Truncated()]
both = pytest.mark.parametrize("make", MAKERS)


def scatter(reducer: BucketReducer, step: int) -> torch.Tensor:
    low, high = even_bounds(WHOLE.numel, reducer.transport.world_size)[reducer.transport.rank :][:2]
    out = torch.empty(high - low)
    reducer.reduce_scatter(
        WHOLE.filled(reducer.transport.rank, step),
        WHOLE.parts,
        even_bounds(WHOLE.numel, reducer.transport.world_size),
        out,
    )
    reducer.commit()
    return out


@both
@pytest.mark.parametrize(
    ("exchange", "world_size"),
    [("auto", 1), ("auto", 2), ("auto", 3), ("auto", 4), ("gather", 3), ("two_phase", 2), ("two_phase", 3)],
)
def test_a_run_that_was_saved_and_loaded_is_the_same_run(
    exchange: str, world_size: int, make: Callable[[Compressor, Transport, str, str], Reducer]
) -> None:
    def rank_main(transport: Transport) -> None:
        for number, codec in enumerate(CODECS):
            straight, second = (make(codec, transport, f"{name}{number}", exchange) for name in "ab")
            for step in range(2):
                play(straight, step)
            state = straight.state_dict()
            expected = [play(straight, step) for step in (2, 3)]  # does not touch what was saved
            second.load_state_dict(through_a_file(state))
            assert second.step == 2
            for step, means in zip((2, 3), expected, strict=True):
                found = play(second, step)
                assert {name: bits(found[name]) for name in TENSORS} == {name: bits(means[name]) for name in TENSORS}
            for name in TENSORS:
                assert bits(second.pending(name)) == bits(straight.pending(name))
            assert second.statistics.saturated == straight.statistics.saturated
            assert second.statistics.steps == 4

    run_ranks(world_size, rank_main)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_run_of_scatters_that_was_saved_and_loaded_is_the_same_run(world_size: int) -> None:
    def rank_main(transport: Transport) -> None:
        for number, codec in enumerate(CODECS):
            straight, first, second = (buckets(codec, transport, f"{name}{number}", "auto") for name in "abc")
            for step in range(2):
                scatter(straight, step)
                scatter(first, step)
            second.load_state_dict(through_a_file(first.state_dict()))
            for step in range(2, 4):
                assert bits(scatter(second, step)) == bits(scatter(straight, step))
            assert second.state_dict().keys() == straight.state_dict().keys()

    run_ranks(world_size, rank_main)


@both
@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (3, 2), (4, 2), (1, 3), (3, 3)])
def test_at_another_world_size_nothing_is_lost(
    before: int, after: int, make: Callable[[Compressor, Transport, str, str], Reducer]
) -> None:
    """What was given by both jobs, and what the second one owes, is what came in; and the merged state owes as much."""

    def first_job(transport: Transport) -> list[tuple[State, Totals, Totals]]:
        return [first(make(codec, transport, f"r{number}", "two_phase")) for number, codec in enumerate(LAWFUL)]

    def first(reducer: Reducer) -> tuple[State, Totals, Totals]:
        given = summed([play(reducer, step) for step in range(2)])
        return through_a_file(reducer.state_dict()), given, owed(reducer)

    saved = run_ranks(before, first_job)
    merged = [merge_states([rank[number][0] for rank in saved]) for number in range(len(LAWFUL))]

    def second_job(transport: Transport) -> list[tuple[Totals, Totals, Totals]]:
        return [
            second(make(codec, transport, f"r{number}", "two_phase"), merged[number])
            for number, codec in enumerate(LAWFUL)
        ]

    def second(reducer: Reducer, state: State) -> tuple[Totals, Totals, Totals]:
        reducer.load_state_dict(through_a_file(state))
        loaded = owed(reducer)
        return loaded, summed([play(reducer, step) for step in (2, 3)]), owed(reducer)

    ranks = run_ranks(after, second_job)
    for number in range(len(LAWFUL)):
        for name in TENSORS:
            debt = sum(rank[number][2][name].double() for rank in saved)
            loaded = sum(rank[number][0][name].double() for rank in ranks)
            torch.testing.assert_close(loaded, debt, rtol=1e-6, atol=1e-6)
        given = [{name: saved[0][number][1][name] + rank[number][1][name] for name in TENSORS} for rank in ranks]
        assert_law(given, [rank[number][2] for rank in ranks], came_in(before, after))
        if after == 1:
            assert not any(ranks[0][number][2][name].any() for name in TENSORS)


def summed(steps: list[dict[str, torch.Tensor]]) -> Totals:
    return {name: torch.stack([means[name].double().view(-1) for means in steps]).sum(0) for name in TENSORS}


def owed(reducer: Reducer) -> Totals:
    known = TENSORS if isinstance(reducer, GradientReducer) or reducer._plans.shapes else {}
    return {name: reducer.pending(name).view(-1) for name in known}


def came_in(before: int, after: int) -> Totals:
    worlds = [before, before, after, after]
    return {
        name: torch.stack([exact_mean(name, shape, worlds[step], step).view(-1) for step in range(4)]).sum(0)
        for name, shape in TENSORS.items()
    }


@both
def test_counters_add_up_and_other_entries_stay(make: Callable[[Compressor, Transport, str, str], Reducer]) -> None:
    def saturating(transport: Transport) -> State:
        reducer = make(FP16(), transport, "r", "two_phase")
        if isinstance(reducer, GradientReducer):
            for name, shape in TENSORS.items():
                reducer.ready(name, torch.full(shape, 1e6 if name == "b1" else 1.0))
            reducer.wait("b1")
        else:
            flat = WHOLE.filled(0, 0)
            flat[WHOLE.parts[1].start : WHOLE.parts[1].stop] = 1e6
            reducer.all_reduce(flat, WHOLE.parts)
            reducer.commit()
        assert reducer.statistics.saturated == 13
        return through_a_file(reducer.state_dict())

    def loading(transport: Transport) -> int:
        reducer = make(FP16(), transport, "r", "two_phase")
        reducer.load_state_dict(merged)
        return reducer.statistics.saturated

    merged = merge_states(run_ranks(2, saturating))
    assert run_ranks(3, loading) == [26, 0, 0]

    def counting(transport: Transport) -> State:
        reducer = make(Truncated(), transport, "r", "gather")
        for step in range(3):
            play(reducer, step)
        return reducer.state_dict()

    entries = merge_states(run_ranks(2, counting))["entries"]
    assert {int(entry["steps"]) for entry in entries.values()} == {3}


@both
def test_one_rank_alone_gives_what_it_owes_with_the_next_finite_gradient(
    make: Callable[[Compressor, Transport, str, str], Reducer],
) -> None:
    def saving(transport: Transport) -> State:
        reducer = make(OneBit(block=16), transport, "r", "gather")
        play(reducer, 0)
        return reducer.state_dict()

    merged = merge_states(run_ranks(2, saving))

    def alone(transport: Transport) -> None:
        reducer = make(OneBit(block=16), transport, "r", "gather")
        reducer.load_state_dict(merged)
        debt = {name: reducer.pending(name) for name in TENSORS}
        assert all(pending.any() for name, pending in debt.items() if name != "scalar")  # one sign says it all
        assert all(mean.isnan().all() for mean in overflowed(reducer).values())
        assert {name: bits(reducer.pending(name)) for name in TENSORS} == {name: bits(debt[name]) for name in TENSORS}
        for step in (1, 2):
            for name, mean in play(reducer, step).items():
                grad = gradient(name, TENSORS[name], 0, step)
                assert bits(mean) == bits(grad + debt[name] if step == 1 else grad)
        assert not any(reducer.pending(name).any() for name in TENSORS)

    run_ranks(1, alone)


def overflowed(reducer: Reducer) -> dict[str, torch.Tensor]:
    if isinstance(reducer, GradientReducer):
        for name, shape in TENSORS.items():
            reducer.ready(name, torch.full(shape, float("inf") if name == "w2" else 1.0))
        return {name: reducer.wait(name) for name in TENSORS}
    flat = torch.full((WHOLE.numel,), float("inf"))
    reducer.all_reduce(flat, WHOLE.parts)
    reducer.rollback()
    return {"flat": flat}


@both
def test_a_state_that_was_loaded_is_the_callers(make: Callable[[Compressor, Transport, str, str], Reducer]) -> None:
    """A reducer gives the storage of old residuals away; not that of a state, which may be loaded again."""

    def rank_main(transport: Transport) -> None:
        reducer = make(OneBit(block=16), transport, "r", "two_phase")
        play(reducer, 0)
        state = reducer.state_dict()
        results = []
        for _ in range(2):
            reducer.load_state_dict(state)
            results.append([bits(mean) for step in (1, 2) for mean in play(reducer, step).values()])
        assert results[0] == results[1]

    run_ranks(3, rank_main)


def test_a_state_is_of_the_last_commit_and_loading_ends_an_open_step() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = buckets(OneBit(block=16), transport, "r", "two_phase")
        play(reducer, 0)
        committed, state = kept_bits(reducer), reducer.state_dict()
        reducer.all_reduce(WHOLE.filled(transport.rank, 1), WHOLE.parts)
        assert kept_bits(reducer) != committed
        again = reducer.state_dict()
        assert {name: bits(values) for name, values in again["residuals"].items()} == {
            name: bits(values) for name, values in state["residuals"].items()
        }
        assert again["calls"] == state["calls"] == 1
        reducer.load_state_dict(state)
        assert kept_bits(reducer) == committed
        reducer.rollback()
        assert kept_bits(reducer) == committed

    run_ranks(3, rank_main)


def test_the_form_of_a_state() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(OneBit(), transport, exchange="two_phase")
        reducer.register(metas({"w": (64, 64), "b": (64,)}))
        one_step(reducer, {"w": (64, 64), "b": (64,)}, 0)
        state = reducer.state_dict()
        tensors = {"residuals": state.pop("residuals"), "servers": state.pop("servers")}
        assert state == {
            "version": 2,
            "compressor": repr(reducer.compressor),
            "world_size": 2,
            "rank": transport.rank,
            "step": 1,
            "calls": 1,
            "skipped_steps": 0,
            "shapes": {"w": [64, 64], "b": [64]},
            "runs": {},
            "counters": {},
            "entries": {},
        }
        assert [(name, values.dtype, values.shape) for name, values in tensors["residuals"].items()] == [
            ("w", torch.float32, (4096,))
        ]
        server = tensors["servers"].pop("w")
        assert not tensors["servers"]
        # of the payload's 520 bytes and the 256 of the small tensor each rank answers for half
        assert (server["start"], len(server["values"]), server["entries"], server["holders"]) == (
            (0, 3056, {}, 1) if transport.rank == 0 else (3056, 1040, {}, 1)
        )

    run_ranks(2, rank_main)


def test_a_state_is_loaded_between_steps_only() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = gradients(OneBit(), transport, "r", "gather")
        state = reducer.state_dict()
        reducer.ready("w1", torch.ones(TENSORS["w1"]))
        with pytest.raises(UsageError, match="between steps"):
            reducer.load_state_dict(state)
        reducer.abandon()
        reducer.load_state_dict(state)

    run_ranks(2, rank_main)
