"""When a 1-bit optimizer stops learning its variance, and what changes then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..compressors.errors import UsageError
from .entry import Entry
from .momentum import MomentumOptimizer

__all__ = ["FreezingOptimizer"]


class FreezingOptimizer(MomentumOptimizer):
    """One whose variance freezes after `freeze_step` steps; from then on momenta are averaged, not gradients.

    Attributes:
        freeze_step: may be changed before a load.
    """

    freeze_step: int
    _frozen = False

    @property
    def frozen(self) -> bool:
        """The variance does not move any more. Set together with the engine's flag."""
        return self._frozen

    @frozen.setter
    def frozen(self, value: bool) -> None:
        self._frozen = value
        self.reduced = not value

    def _always_moves(self, group: Mapping[str, Any]) -> bool:
        """Whether a group's variance is never frozen."""
        return False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. Raises UsageError if the variance is frozen, and ConfigError as the constructor does."""
        if not self.legacy:
            self._refuse_late(f"parameter group {len(self.param_groups)}", param_group)
        super().add_param_group(param_group)

    def _admit(self, new: Sequence[Entry]) -> None:
        for entry in [] if self.legacy else new:
            self._refuse_late(f"parameter {entry.name!r}", entry.group)
        super()._admit(new)

    def _refuse_late(self, what: str, group: Mapping[str, Any]) -> None:
        """What comes after the freeze would never move: its variance is 0, and stays so."""
        if self.frozen and not self._always_moves(group):
            raise UsageError(
                f"{what} comes after the variance was frozen at step {self.freeze_step}, and would never move: add or "
                f"unfreeze it before that, with a larger freeze step, or go on with a new {type(self).__name__}"
            )

    def _settle(self, entries: Sequence[Entry]) -> None:
        # parameters may have been added later; what is loaded goes by the oldest as well
        steps = [entry.state["step"] for entry in entries]
        if not self.frozen and steps and (steps[-1] if self.legacy else max(steps)) >= self.freeze_step:
            self.frozen = True
            self._announce(f"variance is frozen after step {self.freeze_step}; momenta are averaged compressed now")

    def _resume(self, step: int) -> None:
        self.frozen = step >= max(1, self.freeze_step)
        if self.legacy and self.frozen and not self._initialised:
            self._announce(
                "legacy goes on as DeepSpeed 0.19.6 did in fp32: the second step takes local gradients for averages, "
                "and replicas part; leave the key out, and they stay equal"
            )
