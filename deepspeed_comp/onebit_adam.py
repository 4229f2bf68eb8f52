"""1-bit Adam: Adam until its variance is frozen, then momenta with one bit per element (2102.02888)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepspeed.ops.adam import FusedAdam

from .engine import Engine
from .engine_optimizer import Params
from .entry import Entry
from .freezing import FreezingOptimizer
from .groups import ALWAYS_MOVES
from .options import OneBitAdamOptions

__all__ = ["OneBitAdam", "OnebitAdam"]


class OneBitAdam(FreezingOptimizer, FusedAdam):
    """Adam without bias correction; after `freeze_step` steps its variance is frozen and momenta are averaged.

    A `FusedAdam` only in name: DeepSpeed's 16-bit wrappers flatten the groups of that class, as they did for its own
    1-bit Adam.

    Args:
        params: parameters, or groups. Keys of a group: `exp_avg_mask`, by which momenta are multiplied, and
            `non_freeze`: its gradients are always averaged exactly, and its variance keeps moving.
        deepspeed: the engine, if it cannot be found among the callers.
        options: those of `OneBitAdamOptions`, which are the keys in ds.json.

    Raises:
        ConfigError: an option is unknown or out of its range, or something in the engine's configuration excludes
            this optimizer.
    """

    def __init__(self, params: Params, deepspeed: Engine | None = None, **options: Any) -> None:
        chosen = OneBitAdamOptions.read(options)
        self.freeze_step = chosen.freeze_step
        super().__init__(params, deepspeed, chosen)

    @property
    def adam_freeze_key(self) -> bool:
        """DeepSpeed's name for `frozen`."""
        return self.frozen

    @adam_freeze_key.setter
    def adam_freeze_key(self, value: bool) -> None:
        self.frozen = value

    def _always_moves(self, group: Mapping[str, Any]) -> bool:
        return group.get(ALWAYS_MOVES) is True

    def _update(self, entries: Sequence[Entry]) -> bool:
        moving = [entry for entry in entries if not self.frozen or self._always_moves(entry.group)]
        resting = [entry for entry in entries if self.frozen and not self._always_moves(entry.group)]
        if self.frozen and moving and not self._average_gradients(moving):
            return False
        if resting and not self._average_momenta(resting):
            return False
        for entry in moving:
            entry.accumulate()
        for entry in entries:
            entry.descend(entry.update())
        return True

    def _initialise(self, entries: Sequence[Entry]) -> None:
        """Averages the momenta as they are, which are zero unless they were loaded, and forgets most errors."""
        moving = [entry for entry in entries if self._always_moves(entry.group)]
        resting = [entry for entry in entries if not self._always_moves(entry.group)]
        self._average_gradients(moving)
        for entry in moving:
            entry.accumulate()
        means = self.averager.average(resting, [entry.momentum.clone() for entry in resting]) or []
        for entry, mean in zip(resting, means, strict=True):
            entry.momentum.copy_(entry.mask(mean))
        for group in self.param_groups:
            for key in self.local_state:
                self.state[group["params"][-1]].pop(key, None)
        self._frozen = False


OnebitAdam = OneBitAdam
