"""What went on the wire, exactly, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

__all__ = ["Account", "BucketStatistics", "Prediction", "Statistics", "StepStatistics", "TensorStatistics", "Times"]

#: a message costs as much as so many bytes: some 60 µs on a link of 1 Gbit/s
MESSAGE_BYTES = 8192
#: bytes that stay within a host cost so much less than those on its link
LOCAL_SHARE = 16


class Prediction(NamedTuple):
    """What one exchange costs in every step.

    Attributes:
        exchange: its name.
        sent_bytes: what the rank that sends most sends to other ranks.
        link_bytes: what leaves the host that sends most, by all of its ranks.
        messages: how many a rank sends.
    """

    exchange: str
    sent_bytes: int
    link_bytes: int
    messages: int

    @property
    def cost(self) -> int:
        """In bytes on a host's link."""
        return self.link_bytes + self.sent_bytes // LOCAL_SHARE + self.messages * MESSAGE_BYTES


@dataclass(frozen=True, kw_only=True)
class TensorStatistics:
    """One tensor's part in every step.

    Attributes:
        name: the parameter's name.
        numel: elements.
        raw_bytes: bytes of the gradient in its own dtype.
        payload_bytes: bytes of what one rank encodes for it, indices and scales included.
        codec: the compressor that serves it, as it prints itself.
        dense_reason: why it travels uncompressed, or None.
    """

    name: str
    numel: int
    raw_bytes: int
    payload_bytes: int
    codec: str
    dense_reason: str | None


@dataclass(frozen=True, kw_only=True)
class BucketStatistics:
    """One bucket's part in every step; it costs one collective, or two to four where it goes in as many phases.

    Attributes:
        name: prefix of its collectives' names.
        exchange: "all_reduce", "gather", "two_phase", "sparse", "hierarchical" or "reduce_scatter"; "identity" for one
            rank alone.
        tensors: how many tensors it carries.
        raw_bytes: bytes of their gradients in their own dtype.
        sent_bytes: what this rank sends for it in every step.
        predictions: what the exchanges that came into question were expected to cost; the cheapest was taken.
    """

    name: str
    exchange: str
    tensors: int
    raw_bytes: int
    sent_bytes: int
    predictions: tuple[Prediction, ...] = ()


@dataclass
class Times:
    """Of one step, by `time.perf_counter`: its beginning, its end so far, and seconds spent in between.

    Attributes:
        codec: in codecs, in whatever thread.
        overlapped: those of them that ran beside what the caller had to do.
        waited: that the caller was kept waiting.
    """

    begun: float
    ended: float = 0.0
    codec: float = 0.0
    overlapped: float = 0.0
    waited: float = 0.0

    def rest(self, since: float) -> float:
        """What the caller had for itself, from some point in time on."""
        return max(0.0, self.ended - since - self.waited - self.codec + self.overlapped)


@dataclass(frozen=True, kw_only=True)
class StepStatistics:
    """One step, or a sum of steps.

    Attributes:
        raw_bytes: what a rank would send in a ring all-reduce of the gradients in their own dtype.
        fp16_bytes: the same in 16 bits per element.
        sent_bytes: what this rank sent, headers, scales, indices and what was compared before a flat bucket
            included; an all-reduce counts as a ring.
        codec_seconds: time spent encoding and decoding.
        overlapped_seconds: that part of it which ran in another thread, while backward went on.
        wait_seconds: time in which this rank stood still for other ranks and the network (exposed communication).
        other_seconds: everything else since the step before ended: forward, backward, the optimizer, reading data.
    """

    raw_bytes: int = 0
    fp16_bytes: int = 0
    sent_bytes: int = 0
    codec_seconds: float = 0.0
    overlapped_seconds: float = 0.0
    wait_seconds: float = 0.0
    other_seconds: float = 0.0

    def __add__(self, other: StepStatistics) -> StepStatistics:
        return StepStatistics(
            raw_bytes=self.raw_bytes + other.raw_bytes,
            fp16_bytes=self.fp16_bytes + other.fp16_bytes,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            codec_seconds=self.codec_seconds + other.codec_seconds,
            overlapped_seconds=self.overlapped_seconds + other.overlapped_seconds,
            wait_seconds=self.wait_seconds + other.wait_seconds,
            other_seconds=self.other_seconds + other.other_seconds,
        )

    def taking(self, times: Times, since: float) -> StepStatistics:
        """The same with the times of a step; the one before it ended at `since`."""
        return replace(
            self,
            codec_seconds=times.codec,
            overlapped_seconds=times.overlapped,
            wait_seconds=times.waited,
            other_seconds=times.rest(since),
        )


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """A reducer's account so far.

    Attributes:
        tensors: one entry per registered tensor.
        buckets: one entry per bucket, in the order in which they start.
        error_feedback: True if any tensor keeps a residual.
        steps: applied steps.
        skipped_steps: steps refused because a gradient was not finite on some rank.
        saturated: finite values that were clamped to a 16-bit range on this rank so far.
        last: the last step.
        total: the sum of all steps.
    """

    tensors: tuple[TensorStatistics, ...] = ()
    buckets: tuple[BucketStatistics, ...] = ()
    error_feedback: bool = False
    steps: int = 0
    skipped_steps: int = 0
    saturated: int = 0
    last: StepStatistics = field(default_factory=StepStatistics)
    total: StepStatistics = field(default_factory=StepStatistics)

    def summary(self) -> str:
        """One line, such as `compressing 12 of 30 tensors, 98 % of bytes; error feedback on`."""
        compressed = [tensor for tensor in self.tensors if tensor.dense_reason is None]
        raw = sum(tensor.raw_bytes for tensor in self.tensors)
        share = sum(tensor.raw_bytes for tensor in compressed) / raw if raw else 0.0
        return (
            f"compressing {len(compressed)} of {len(self.tensors)} tensors, {share:.0%} of bytes".replace("%", " %")
            + f"; error feedback {'on' if self.error_feedback else 'off'}"
        )

    def dense_reasons(self) -> dict[str, int]:
        """How many tensors travel uncompressed, by reason."""
        counts: dict[str, int] = {}
        for tensor in self.tensors:
            if tensor.dense_reason is not None:
                counts[tensor.dense_reason] = counts.get(tensor.dense_reason, 0) + 1
        return counts


class Account:
    """What a reducer has sent and spent; the last step may be noted again while its means are taken.

    Attributes:
        per_step: the bytes of every step.
        skipped: steps that were refused.
    """

    def __init__(self) -> None:
        self.per_step = StepStatistics()
        self.skipped = 0
        self._last = StepStatistics()
        self._before_last = StepStatistics()
        self._ended: float | None = None
        self._since: float | None = None

    def begin(self, *, applied: bool) -> None:
        """A step was settled, and applied or refused."""
        self.skipped += not applied
        self._before_last += self._last
        self._last = StepStatistics()
        self._since = self._ended

    def note(self, times: Times) -> None:
        """What the last step has taken so far."""
        self._ended = times.ended
        self._last = self.per_step.taking(times, times.begun if self._since is None else self._since)

    def of(self, statistics: Statistics) -> Statistics:
        """The same with the steps in it."""
        total = self._before_last + self._last
        return replace(statistics, skipped_steps=self.skipped, last=self._last, total=total)


def merge(parts: list[Statistics]) -> Statistics:
    """The account of several reducers together; `last` is the sum of their last steps."""
    return Statistics(
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
        buckets=tuple(bucket for part in parts for bucket in part.buckets),
        error_feedback=any(part.error_feedback for part in parts),
        steps=max((part.steps for part in parts), default=0),
        skipped_steps=max((part.skipped_steps for part in parts), default=0),
        saturated=sum(part.saturated for part in parts),
        last=sum((part.last for part in parts), StepStatistics()),
        total=sum((part.total for part in parts), StepStatistics()),
    )
