"""What is saved of compressed gradients: a reducer's state, and what its residuals are to be multiplied with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...backends import merge_states
from ...backends.snapshot import StateDict, parse
from ...compressors.errors import ConfigError

__all__ = ["merged", "scaled", "split"]

KEYS = ("reducer", "unit")


def split(state: Mapping[str, Any]) -> tuple[float, StateDict]:
    """The unit and the reducer's state.

    Raises:
        ConfigError: `state` is something else.
    """
    if sorted(state) != [*KEYS]:
        raise ConfigError(f"this state has the keys {sorted(state)}, expected {list(KEYS)}")
    unit = state["unit"]
    if not isinstance(unit, float) or not 0 < unit < math.inf:
        raise ConfigError(f"the unit of this state is {unit!r}, expected a finite number above 0")
    return unit, state["reducer"]


def scaled(form: StateDict, factor: float) -> StateDict:
    """A reducer's state with all residuals multiplied; exact where `factor` is a power of two.

    Raises:
        ConfigError: the state is malformed.
    """
    snapshot = parse(form)
    servers = {name: replace(one, values=one.values * factor) for name, one in snapshot.servers.items()}
    residuals = {name: values * factor for name, values in snapshot.residuals.items()}
    return replace(snapshot, residuals=residuals, servers=servers).form()


def merged(states: Sequence[Mapping[str, Any]]) -> StateDict:
    """One state for any world size, from those of all ranks.

    Raises:
        ConfigError: they are not those of all ranks of one job at one step.
    """
    units, forms = zip(*map(split, states), strict=True)
    if len(set(units)) > 1:
        raise ConfigError(f"the ranks' states have the units {units}, expected one: they are not of one step")
    return {"unit": units[0], "reducer": merge_states(forms)}
