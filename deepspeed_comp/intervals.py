"""When 0/1 Adam does what it does ever more rarely: counters and intervals in a parameter's state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["lengthen", "moves_variance", "new_intervals", "synchronises"]


def new_intervals() -> dict[str, Any]:
    """Those of a parameter before its first step: everything at every step."""
    return {"var_interval": 1, "var_counter": 0, "local_step_interval": 1, "local_step_counter": 0}


def moves_variance(state: Mapping[str, Any]) -> bool:
    """Whether the step after those counted moves the variance, if it is not frozen."""
    return (state["step"] + 1) % state["var_interval"] == 0


def synchronises(state: Mapping[str, Any]) -> bool:
    """Whether the step after those counted ends with an exchange, if the variance is frozen."""
    return (state["step"] + 1) % state["local_step_interval"] == 0


def lengthen(state: dict[str, Any], kind: str, turns: int, longest: float = math.inf) -> None:
    """Count a turn; after so many of them the interval doubles.

    Args:
        state: of the parameter.
        kind: "var" or "local_step".
        turns: how many it takes.
        longest: the interval grows no further.
    """
    state[f"{kind}_counter"] += 1
    if state[f"{kind}_counter"] == turns:
        state[f"{kind}_counter"] = 0
        state[f"{kind}_interval"] = min(longest, 2 * state[f"{kind}_interval"])
