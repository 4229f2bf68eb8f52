"""What a bucket reducer has sent and spent, call by call."""

from __future__ import annotations

from dataclasses import replace

from .statistics import Statistics, StepStatistics, Times

__all__ = ["BucketAccount"]


class BucketAccount:
    """Adds up calls to steps.

    Args:
        compared_bytes: what every call sends before its bucket.

    Attributes:
        steps: steps that were committed.
        skipped: steps that were rolled back.
    """

    def __init__(self, compared_bytes: int) -> None:
        self._compared_bytes = compared_bytes
        self.steps = 0
        self.skipped = 0
        self._open: StepStatistics | None = None
        self._ended: float | None = None
        self._last = StepStatistics()
        self._before = StepStatistics()

    def add(self, per_call: StepStatistics, times: Times) -> None:
        """A call was made."""
        sent = per_call.sent_bytes + self._compared_bytes
        call = replace(per_call, sent_bytes=sent).taking(times, times.begun if self._ended is None else self._ended)
        self._ended = times.ended
        self._open = call if self._open is None else self._open + call

    def end(self, *, applied: bool) -> None:
        """The calls since the last end are a step; where there was none, there was no step."""
        if self._open is None:
            return
        self.steps += applied
        self.skipped += not applied
        self._before, self._last, self._open = self._before + self._open, self._open, None

    def of(self, statistics: Statistics) -> Statistics:
        """The same with the steps in it; `total` counts calls of a step that has not ended too."""
        total = self._before + (self._open or StepStatistics())
        return replace(statistics, steps=self.steps, skipped_steps=self.skipped, last=self._last, total=total)
