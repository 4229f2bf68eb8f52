"""A message that does not belong to this step is refused, with the rank and both values."""

from __future__ import annotations

import pytest
from gradwire import PayloadError, TopK
from gradwire.backends import GradientReducer, Transport, run_ranks
from support.listening import Listening
from support.reducing import SHAPES, assert_states_equal, copy_states, metas, one_step


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
def test_a_rank_in_another_step(exchange: str, world_size: int) -> None:
    """Several buckets: all of them are finished before the error is raised, so that the next step is a clean one."""

    def rank_main(transport: Transport) -> str:
        listening = Listening(transport)
        reducer = GradientReducer(TopK(ratio=0.1), listening, exchange=exchange, bucket_bytes=3000, timeout=10.0)
        reducer.register(metas(SHAPES))
        one_step(reducer, SHAPES, 0)
        before = copy_states(reducer)
        reducer.step = 7 if transport.rank == 1 else 1
        with pytest.raises(PayloadError) as caught:
            one_step(reducer, SHAPES, 1)
        assert not listening.open
        assert_states_equal(copy_states(reducer), before)
        reducer.step = 1
        one_step(reducer, SHAPES, 1)
        return str(caught.value)

    texts = run_ranks(world_size, rank_main)
    for rank, text in enumerate(texts):
        other, here, there = (0, 7, 1) if rank == 1 else (1, 1, 7)
        assert text == f"message of rank {other}: step is {there}, expected {here}"
