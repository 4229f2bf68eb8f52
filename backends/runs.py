"""What a rank keeps for one tensor, when pieces of it come and go in varying buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..compressors import Compressor, State
from ..compressors.memory import RESIDUAL

__all__ = ["Change", "Run", "joined"]


@dataclass(frozen=True)
class Run:
    """What is kept for the elements `low` to `high` of a flattened tensor.

    It counts as one of so many `holders` in what all ranks owe; None: as all that is kept of its kind.
    """

    low: int
    high: int
    state: State
    holders: int | None = None

    def cut(self, low: int, high: int, compressor: Compressor, device: torch.device) -> State:
        """The state of some elements. They need not all lie within the run: what lies outside is zero."""
        return {
            key: self._window(value, low, high).to(device) if key in compressor.elementwise_state else value
            for key, value in self.state.items()
        }

    def scaled(self, factor: float, compressor: Compressor) -> Run:
        """All values that belong to elements, times `factor`."""
        keys = compressor.elementwise_state
        return Run(self.low, self.high, {k: v * factor if k in keys else v for k, v in self.state.items()})

    def _window(self, values: torch.Tensor, low: int, high: int) -> torch.Tensor:
        if self.low <= low and high <= self.high:
            return values[low - self.low : high - self.low]
        window = values.new_zeros(high - low)
        first, last = max(low, self.low), min(high, self.high)
        if first < last:
            window[first - low : last - low] = values[first - self.low : last - self.low]
        return window


class Change(NamedTuple):
    """What a call makes of the state of the elements `low` to `high`."""

    low: int
    high: int
    before: State
    after: State


def joined(
    old: Run | None, changes: Sequence[Change], compressor: Compressor, draft: torch.Tensor | None = None
) -> Run:
    """The run after some changes; it reaches from the first element ever seen to the last.

    As where a message cuts a tensor, counters add up, and of entries that belong to no element the last one counts.

    Args:
        old: the run before.
        changes: one or more, which do not overlap.
        compressor: says which entries are which.
        draft: storage for the new residual, as long as the new run; right already where nothing has changed.
    """
    low = min(run.low for run in (old, *changes) if run)
    high = max(run.high for run in (old, *changes) if run)
    if len(changes) == 1 and changes[0][:2] == (low, high):
        return Run(low, high, changes[0].after)
    before = old.state if old else {}
    state = {key: value for key, value in changes[-1].after.items() if key not in compressor.elementwise_state}
    for key in compressor.counters & state.keys():
        state[key] = before.get(key, torch.zeros_like(state[key]))
        for change in changes:
            if key in change.after:
                state[key] = state[key] + change.after[key] - change.before.get(key, 0)
    for key in compressor.elementwise_state & {*before, *(key for change in changes for key in change.after)}:
        target = draft if key == RESIDUAL and draft is not None else _extended(old, key, low, high, changes)
        _lay(target, key, low, changes)
        state[key] = target
    return Run(low, high, state)


def _extended(old: Run | None, key: str, low: int, high: int, changes: Sequence[Change]) -> torch.Tensor:
    """A copy of the old values, with zeros around them."""
    values = [state[key] for state in (*(change.after for change in changes), old.state if old else {}) if key in state]
    target = values[0].new_zeros(high - low)
    if old is not None and key in old.state:
        target[old.low - low : old.high - low] = old.state[key]
    return target


def _lay(target: torch.Tensor, key: str, low: int, changes: Sequence[Change]) -> None:
    """Write what the changes have, unless a codec has written it there already."""
    for change in changes:
        place = target[change.low - low : change.high - low]
        if key not in change.after:
            place.zero_()
        elif place.data_ptr() != change.after[key].data_ptr():
            place.copy_(change.after[key])
