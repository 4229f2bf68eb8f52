"""A codec that raises on one rank: nobody hangs, nobody moves on, and the next step works."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from gradwire import Context, ErrorFeedback, PeerError, SizePolicy
from gradwire.backends import GradientReducer, Transport, run_ranks
from support.reducing import (
    SHAPES,
    assert_ranks_equal,
    assert_states_equal,
    copy_states,
    everything,
    gradient,
    metas,
    one_step,
)
from support.truncating import Trap, Truncated

LIMIT = 10.0


class Played(NamedTuple):
    error: Exception | None
    means: list[dict[str, torch.Tensor]]
    step: int
    skipped: int


def play(transport: Transport, codec: Truncated, exchange: str, failing_step: int) -> Played:
    """Three steps; the one in which the codec fails is tried again, with other gradients."""
    reducer = GradientReducer(codec, transport, exchange=exchange, bucket_bytes=6000, timeout=LIMIT)
    reducer.register(metas(SHAPES))
    means, error = [], None
    for step in range(3):
        if step == failing_step:
            before = copy_states(reducer)
            error = failed_step(reducer)
            assert_states_equal(copy_states(reducer), before)
            assert not reducer.in_step
            codec.trap.rank = -1
            transport.barrier("repaired", LIMIT)
        means.append(one_step(reducer, SHAPES, step, donate=step > 0))
    return Played(error, means, reducer.step, reducer.statistics.skipped_steps)


def failed_step(reducer: GradientReducer) -> Exception | None:
    for name, shape in SHAPES.items():
        reducer.ready(name, gradient(name, shape, reducer.transport.rank, 99), donate=True)
    try:
        assert reducer.wait("w1").isnan().all()
        assert reducer.wait("b1").isnan().all()
    except Exception as error:
        return error
    return None


def expect_errors(played: list[Played], failing: int, *, refused: bool = False) -> None:
    for rank, one in enumerate(played):
        if rank == failing:
            assert isinstance(one.error, ArithmeticError)
        elif refused:
            assert one.error is None
            assert one.skipped == 1
        else:
            assert isinstance(one.error, PeerError)
            assert f"rank {failing}" in str(one.error)
        assert one.step == 3


@pytest.mark.parametrize("failing_step", [0, 1])
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(("exchange", "sums"), [("gather", False), ("two_phase", False), ("all_reduce", True)])
def test_a_codec_that_raises_on_one_rank(exchange: str, sums: bool, world_size: int, failing_step: int) -> None:
    for failing in range(world_size):
        trap = Trap(rank=failing, step=failing_step, tensor="w1")
        codec = Truncated(sums=sums, trap=trap)
        played = run_ranks(world_size, lambda transport, codec=codec: play(transport, codec, exchange, failing_step))
        expect_errors(played, failing, refused=sums)
        clean = run_ranks(world_size, lambda transport: play(transport, Truncated(sums=sums), exchange, -1))
        assert_ranks_equal([*(one.means for one in played), *(one.means for one in clean)])


def test_a_stateless_codec_that_raises_leaves_the_step_counts_equal() -> None:
    """Without a residual the others would not have noticed that the step failed."""
    codec = SizePolicy(Truncated(sums=True, error_feedback=False, trap=Trap(rank=1, step=0, tensor="w1")))
    played = run_ranks(2, lambda transport: play_policy(transport, codec))
    assert [step for _, step in played] == [0, 0]
    assert isinstance(played[1][0], ArithmeticError)


def play_policy(transport: Transport, codec: SizePolicy) -> tuple[Exception | None, int]:
    reducer = GradientReducer(codec, transport, timeout=LIMIT)
    reducer.register(metas(SHAPES))
    return failed_step(reducer), reducer.step


@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
def test_a_users_state_counts_steps_not_messages(exchange: str) -> None:
    def rank_main(transport: Transport) -> list[int]:
        reducer = GradientReducer(everything(Truncated()), transport, exchange=exchange)
        reducer.register(metas({"w": (30, 30)}))
        for step in range(4):
            one_step(reducer, {"w": (30, 30)}, step)
        return [int(state["w"]["steps"]) for state in copy_states(reducer) if state["w"]]

    for counts in run_ranks(3, rank_main):
        assert set(counts) == {4}


class Unreadable(Truncated):
    """Fails where an average of several ranks is formed, on one rank alone."""

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        if weight > 0 and self.trap.rank == ctx.rank:
            raise ArithmeticError("unreadable")
        super()._decode_add(payload, ctx, out, weight)


def test_a_decoder_that_raises_between_the_phases_is_a_peers_failure_too() -> None:
    codec = SizePolicy(ErrorFeedback(Unreadable(trap=Trap(rank=2))), min_numel=0, min_ndim=0)

    def rank_main(transport: Transport) -> Exception | None:
        reducer = GradientReducer(codec, transport, exchange="two_phase", bucket_bytes=3000, timeout=LIMIT)
        reducer.register(metas(SHAPES))
        error = failed_step(reducer)
        assert reducer.step == 0
        return error

    errors = run_ranks(3, rank_main)
    assert [type(error) for error in errors] == [PeerError, PeerError, ArithmeticError]
    assert "rank 2" in str(errors[0])
