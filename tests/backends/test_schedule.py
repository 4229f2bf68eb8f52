"""In which order buckets start and advance."""

from __future__ import annotations

import pytest
from gradwire.backends.schedule import LEAD, Action, by_phase, in_flight
from hypothesis import given
from hypothesis import strategies as st

PHASES = st.lists(st.integers(1, 4), max_size=8)
ORDERS = pytest.mark.parametrize("order", [by_phase, in_flight])


@ORDERS
@given(phases=PHASES)
def test_every_action_comes_once_and_the_phases_of_a_bucket_in_turn(order, phases: list[int]) -> None:  # noqa: ANN001
    actions = order(phases)
    assert sorted(actions) == [Action(bucket, phase) for bucket, count in enumerate(phases) for phase in range(count)]
    for bucket, count in enumerate(phases):
        assert [action.phase for action in actions if action.bucket == bucket] == list(range(count))


@ORDERS
@given(phases=PHASES)
def test_buckets_start_in_their_order(order, phases: list[int]) -> None:  # noqa: ANN001
    assert [action.bucket for action in order(phases) if action.phase == 0] == list(range(len(phases)))


@given(phases=PHASES)
def test_in_flight_a_bucket_advances_once_so_many_others_have_started(phases: list[int]) -> None:
    actions = in_flight(phases)
    for at, (bucket, phase) in enumerate(actions):
        started = sum(action.phase == 0 for action in actions[:at])
        if phase:
            assert started == min(len(phases), bucket + LEAD * phase + 1)


@given(phases=PHASES)
def test_by_phase_all_start_before_one_advances(phases: list[int]) -> None:
    assert [action.phase for action in by_phase(phases)] == sorted(action.phase for action in by_phase(phases))
