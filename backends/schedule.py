"""In which order the exchanges of a step start and advance: computed alike on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Action", "by_phase", "in_flight"]

#: buckets that start before the first of them advances: so many messages are under way while one is waited for
LEAD = 2


class Action(NamedTuple):
    """A bucket's start (phase 0), or its launch of a later phase."""

    bucket: int
    phase: int


def by_phase(phases: Sequence[int]) -> list[Action]:
    """All buckets start before one advances. `phases` has the number of phases by bucket."""
    return sorted(_actions(phases), key=lambda action: (action.phase, action.bucket))


def in_flight(phases: Sequence[int]) -> list[Action]:
    """A bucket advances once `LEAD` others have started after it: while backward still makes gradients for more."""
    return sorted(_actions(phases), key=lambda action: (action.bucket + LEAD * action.phase, action.phase))


def _actions(phases: Sequence[int]) -> list[Action]:
    return [Action(bucket, phase) for bucket, count in enumerate(phases) for phase in range(count)]
