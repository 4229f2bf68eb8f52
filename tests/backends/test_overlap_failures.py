"""What goes wrong while a thread goes on with a step is heard of where the step is settled."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from gradwire import ConfigError, MismatchError, OneBit, PeerError, TopK
from gradwire.backends import GradientReducer, LocalTransport, Transport, registry, run_ranks
from gradwire.backends.exchange import Clock
from gradwire.backends.schedule import Action
from gradwire.backends.step import Step
from gradwire.compressors.errors import TransportError, TransportTimeout
from support.overlapping import FOUR, HOSTS, SECONDS, eventually, reducer_of, threads
from support.reducing import assert_ranks_equal, one_step
from support.truncating import Trap, Truncated


@pytest.fixture(autouse=True)
def _threads_for_little_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "WORTH_A_THREAD", 1)


@pytest.mark.parametrize("tensor", ["a", "d"])
@pytest.mark.parametrize("exchange", ["gather", "two_phase", "hierarchical"])
def test_a_codec_that_raises_is_heard_of_on_all_ranks(exchange: str, tensor: str) -> None:
    codec = Truncated(trap=Trap(rank=2, step=1, tensor=tensor))

    def rank_main(transport: Transport) -> Exception:
        reducer = reducer_of(transport, codec, exchange=exchange)
        one_step(reducer, FOUR, 0)
        kept = {name: reducer.pending(name) for name in FOUR}
        with pytest.raises((ArithmeticError, PeerError)) as caught:
            one_step(reducer, FOUR, 1)
        assert_ranks_equal([[kept], [{name: reducer.pending(name) for name in FOUR}]])
        codec.trap.step = -1
        one_step(reducer, FOUR, 2)
        return caught.value

    errors = run_ranks(4, rank_main, hosts=HOSTS)
    assert [type(error) for error in errors] == [PeerError, PeerError, ArithmeticError, PeerError]


@pytest.mark.parametrize("failing", ["rTrue.0.scatter", "rTrue.0.gather", "rTrue.3.scatter"])
def test_a_collective_that_fails_ends_the_reducer(failing: str) -> None:
    def break_down(rank: int, name: str) -> None:
        if rank == 1 and name == failing:
            raise TransportError("the cable is gone")

    def rank_main(transport: Transport) -> None:
        reducer = reducer_of(transport, OneBit(), exchange="two_phase", timeout=0.5)
        for _ in range(2):
            with pytest.raises(
                TransportError, match=r"cable is gone" if transport.rank == 1 else r"parted|never came|not finished"
            ):
                one_step(reducer, FOUR, 0)

    run_ranks(2, rank_main, hook=break_down)


def test_a_rank_that_does_not_come_is_an_error_in_time() -> None:
    done = threading.Event()

    def rank_main(transport: Transport) -> None:
        reducer = reducer_of(transport, OneBit(), exchange="two_phase", timeout=0.3)
        if transport.rank == 0:
            with pytest.raises(TransportTimeout, match=r"ranks \[1\] have not come"):
                one_step(reducer, FOUR, 0)
            done.set()
        else:
            reducer.ready("a", torch.ones(40, 40))
            assert done.wait(SECONDS)

    run_ranks(2, rank_main)


def test_an_abandoned_step_leaves_everything_as_it_was() -> None:
    def rank_main(transport: Transport) -> None:
        both = [reducer_of(transport, TopK(ratio=0.1), exchange="sparse", name=name) for name in ("one", "other")]
        for name in ("a", "b", "c"):
            both[0].ready(name, torch.full((40, 40), 7.0))
        both[0].abandon()
        assert_ranks_equal([[one_step(reducer, FOUR, step) for step in range(2)] for reducer in both])

    run_ranks(4, rank_main)


def test_ranks_must_agree_on_it() -> None:
    def rank_main(transport: Transport) -> None:
        with pytest.raises(MismatchError, match=r"overlap=True.*overlap=False"):
            reducer_of(transport, OneBit(), overlap=transport.rank == 0, name="same")

    run_ranks(2, rank_main)


def test_what_cannot_be_is_refused() -> None:
    transport = LocalTransport.group(2)[0]
    with pytest.raises(ConfigError, match=r"^overlap is 'no'; it must be True or False"):
        GradientReducer(OneBit(), transport, overlap="no")  # pyright: ignore[reportArgumentType]
    transport.any_thread = False
    GradientReducer(OneBit(), transport)
    with pytest.raises(ConfigError, match="local was initialised for one only: initialise it with MPI_THREAD_MULTIPLE"):
        GradientReducer(OneBit(), transport, overlap=True)


def test_a_step_that_is_settled_while_its_follower_looks_away_lets_it_go() -> None:
    """What is said just before the follower forgets the news, it sees."""
    step = Step([], Clock(0, 0, 0), ordered=False, overlap=True)

    class Forgetful(threading.Event):
        def clear(self) -> None:
            step.stop()
            super().clear()

    step._news = Forgetful()
    step._actions = [Action(0, 0)]
    step._sources, step._sizes = [{}], [1]
    follower = threading.Thread(target=step.follow, daemon=True)
    follower.start()
    follower.join(SECONDS)
    assert not follower.is_alive()


def gone(name: str) -> bool:
    """Whether the threads of reducers of this name have ended; errors refer to their steps, and these to them."""
    gc.collect()
    return not threads(name)


def test_the_thread_of_a_reducer_that_is_dropped_in_mid_step_ends() -> None:
    started = threading.Barrier(2)

    def rank_main(transport: Transport) -> None:
        reducer = reducer_of(transport, OneBit(), exchange="two_phase", name="dropped")
        for name in ("a", "b"):
            reducer.ready(name, torch.ones(40, 40))
        started.wait(SECONDS)
        assert len(threads("dropped")) == 2
        started.wait(SECONDS)
        del reducer
        assert eventually(lambda: gone("dropped"))

    run_ranks(2, rank_main)


def test_a_start_that_fails_lets_the_thread_of_its_step_go() -> None:
    def break_down(rank: int, name: str) -> None:
        if name.endswith(".3.scatter"):
            raise TransportError("the cable is gone")

    def rank_main(transport: Transport) -> None:
        reducer = reducer_of(transport, OneBit(), exchange="two_phase", name="failed", timeout=0.5)
        with pytest.raises(TransportError):
            one_step(reducer, FOUR, 0)
        del reducer
        assert eventually(lambda: gone("failed"))

    run_ranks(2, rank_main, hook=break_down)
