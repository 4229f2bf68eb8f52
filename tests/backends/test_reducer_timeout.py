"""A rank that does not come, or a collective that fails: an error with its name, and no further step."""

from __future__ import annotations

import re
import threading

import pytest
from gradwire import RandomK, TopK, TransportError, TransportTimeout, UsageError
from gradwire.backends import GradientReducer, Transport, run_ranks
from support.reducing import SHAPES, assert_states_equal, copy_states, gradient, ids, metas, one_step


@pytest.mark.parametrize("compressor", [TopK(ratio=0.1), RandomK(ratio=0.1)], ids=ids)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_rank_that_never_comes(compressor: TopK | RandomK, world_size: int) -> None:
    """Its peers keep their states and take no further step: the late rank may yet apply the one they gave up."""
    all_done = threading.Barrier(world_size, timeout=20)

    def rank_main(transport: Transport) -> str:
        reducer = GradientReducer(compressor, transport, timeout=0.2)
        reducer.register(metas(SHAPES))
        one_step(reducer, SHAPES, 0)
        before = copy_states(reducer)
        if transport.rank == 1:
            all_done.wait()
            return ""
        with pytest.raises(TransportTimeout) as caught:
            one_step(reducer, SHAPES, 1)
        assert_states_equal(copy_states(reducer), before)
        assert (reducer.step, reducer.in_step) == (1, False)
        with pytest.raises(TransportError, match="no further step"):
            reducer.ready("b1", gradient("b1", (37,), 0, 1))
        with pytest.raises(TransportError, match="no further step"):
            reducer.flush()
        with pytest.raises(UsageError):
            reducer.wait("b1")
        all_done.wait()
        return str(caught.value)

    text = run_ranks(world_size, rank_main)[0]
    assert re.match(r"gradwire\.0.*not finished within 0.2 s; ranks \[1\] have not come", text)


def test_a_rank_that_registers_late() -> None:
    given_up = threading.Event()

    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(TopK(ratio=0.1), transport, timeout=0.2)
        if transport.rank == 0:
            with pytest.raises(TransportTimeout, match="fingerprint"):
                reducer.register(metas(SHAPES))
            assert not reducer.names
            given_up.set()
        assert given_up.wait(20)

    run_ranks(2, rank_main)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("phase", ["scatter", "gather"])
def test_a_collective_that_cannot_be_started(phase: str, ordered: bool) -> None:
    """The error comes out of ready() or wait(), whichever started it; then the reducer says that it is done for."""
    armed = threading.Event()
    all_done = threading.Barrier(2, timeout=20)

    def break_down(rank: int, name: str) -> None:
        if armed.is_set() and rank == 0 and name == f"gradwire.1.{phase}":
            raise TransportError(f"{name}: the cable is cut")

    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(TopK(ratio=0.1), transport, exchange="two_phase", bucket_bytes=3000, timeout=0.5)
        reducer.register(metas(SHAPES))
        one_step(reducer, SHAPES, 0)
        transport.barrier("armed", 20)
        armed.set()
        before = copy_states(reducer)
        with pytest.raises(TransportError, match="the cable is cut" if transport.rank == 0 else "not finished within"):
            one_step(reducer, SHAPES, 1)
        assert_states_equal(copy_states(reducer), before)
        with pytest.raises(TransportError, match="no further step"):
            one_step(reducer, SHAPES, 1)
        all_done.wait()

    run_ranks(2, rank_main, ordered=ordered, hook=break_down)
