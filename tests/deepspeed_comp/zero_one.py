"""A short ZeroOneAdam for tests: its variance moves at steps 1, 2, 4, and is frozen after step 5."""

from __future__ import annotations

from typing import Any

from gradwire.backends import Transport
from gradwire.deepspeed_comp.zero_one_adam import ZeroOneAdam

from ..support.momentum import Gradients, Rank, seeded

__all__ = ["FREEZE", "LONELY", "OPTIONS", "SYNCHRONISED", "trained"]

FREEZE = 5
#: the interval between synchronisations doubles after two frozen steps
OPTIONS: dict[str, Any] = {
    "lr": 1e-2,
    "eps": 1e-3,
    "var_freeze_step": FREEZE,
    "var_update_scaler": 2,
    "local_step_scaler": 2,
    "local_step_clipper": 4,
}
#: by number of steps taken: steps that end with an exchange of updates, and the first one after the last such
SYNCHRONISED, LONELY = [6, 7, 8, 12, 16, 20], [9, 10, 11, 13, 14, 15, 17, 18, 19]


def trained(transport: Transport, steps: int, gradients: Gradients = seeded, **options: Any) -> Rank:
    """A rank after so many steps."""
    rank = Rank(transport, ZeroOneAdam, **(OPTIONS | options))
    rank.train(gradients, range(steps))
    return rank
