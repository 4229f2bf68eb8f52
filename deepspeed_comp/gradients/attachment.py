"""Compression that is attached to an engine: when it acts, when a step counts, and what is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...backends import BucketReducer, Statistics
from ...backends.announce import announce
from ...compressors.errors import UnsupportedError
from .._host import deepspeed
from .averaging import Averaging, Carried
from .state import merged, scaled, split
from .sums import GradientSums

__all__ = ["Attachment"]

StateDict = dict[str, Any]


class Attachment:
    """Compression of one engine's gradients, from `attach` to `detach`.

    Residuals follow the loss scale, and are saved without it: as parts of the gradient that the optimizer sees.

    Args:
        engine: DeepSpeed's.
        reducer: takes the means.
        group: the ranks that average, as torch.distributed knows them.
        averaging: where the engine averages gradients.
        warmup_steps: steps of the engine, from its first one on, whose gradients are left to DeepSpeed.
    """

    def __init__(
        self, engine: Any, reducer: BucketReducer, group: Any, averaging: Averaging, warmup_steps: int
    ) -> None:
        self.attached = True
        self.averaging = averaging
        self._engine = engine
        self._reducer = reducer
        self._ranks = dist.get_process_group_ranks(group)
        self._warmup_steps = warmup_steps
        self._loss_scale = self._current_loss_scale()
        self._proved = False

    @property
    def active(self) -> bool:
        """Whether gradients are compressed now, rather than left to DeepSpeed."""
        return self.attached and self._engine.global_steps >= self._warmup_steps

    @property
    def statistics(self) -> Statistics:
        """What was sent and how long it took."""
        return self._reducer.statistics

    def pending(self, name: str) -> torch.Tensor:
        """This rank's part of what is still owed of a parameter's gradient; the ranks' parts add up to the whole.

        fp32, in the parameter's shape, without loss scale.

        Raises:
            UsageError: the parameter's gradient was never compressed.
        """
        return self._reducer.pending(name) * self._unit

    # A step.

    def sums(self, carried: Carried) -> GradientSums:
        """For one call that averages gradients."""
        self._follow_loss_scale()
        return GradientSums(self._reducer, self._ranks, carried)

    def end_step(self, *, applied: bool) -> None:
        """The engine has taken a step in which compression was active, or has skipped it.

        Raises:
            UnsupportedError: it was the first such step, and DeepSpeed averaged nothing where gradwire looked.
        """
        if applied:
            self._reducer.commit()
        else:
            self._reducer.rollback()
        if not self._proved:
            self._prove()

    def _prove(self) -> None:
        """Never silently uncompressed."""
        statistics = self.statistics
        if not statistics.buckets:
            raise UnsupportedError(
                f"nothing was compressed: DeepSpeed {deepspeed.__version__} has not averaged this step's gradients "
                "where gradwire looked. Does the script average them itself, or not at all? Otherwise detach(), and "
                "tell us how the engine is set up"
            )
        if self._reducer.transport.rank == 0:
            announce(statistics.summary())
        self._proved = True

    # The loss scale.

    def _current_loss_scale(self) -> float:
        return float(getattr(self._engine.optimizer, "loss_scale", None) or 1.0)

    def _follow_loss_scale(self) -> None:
        """What was left out of earlier gradients is in their scale."""
        now = self._current_loss_scale()
        if now != self._loss_scale:
            self._reducer.rescale(now / self._loss_scale)
            self._loss_scale = now

    @property
    def _unit(self) -> float:
        """A residual times this is a part of the mean gradient."""
        return self.averaging.after * len(self._ranks) / self._loss_scale

    # State.

    def state_dict(self) -> StateDict:
        """What this rank kept at the last step that was applied: `{"unit": number, "reducer": form}`.

        The form is that of the reducers of `gradwire.backends`; a residual in it, times the unit, is a part of the
        mean gradient without loss scale.
        """
        return {"unit": self._unit, "reducer": self._reducer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this rank's own state at the same world size, or from a merged one at any.

        Raises:
            ConfigError: it is malformed or does not fit; nothing has changed.
        """
        unit, form = split(state)
        self._loss_scale = self._current_loss_scale()
        self._reducer.load_state_dict(scaled(form, unit / self._unit), self.averaging.shapes)

    def rank_state(self) -> StateDict:
        """As `state_dict`, for the engine's checkpoints."""
        return self.state_dict()

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        """As `load_state_dict`, for the engine's checkpoints."""
        self.load_state_dict(state)

    def forget_rank_state(self) -> None:
        """Residuals begin at zero; on every rank."""
        self._reducer.reset()

    def merge_rank_states(self, states: Sequence[Mapping[str, Any]]) -> StateDict:
        """One state for any world size, from those of all ranks.

        Raises:
            ConfigError: they are not those of all ranks of one job at one step.
        """
        return merged(states)
