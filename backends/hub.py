"""Where the ranks of a `LocalTransport` meet: who has come to which collective, what differs, and the arithmetic."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields

import torch

from ..compressors.errors import TransportError, UsageError

__all__ = ["Call", "Hook", "Hub", "Meeting", "Part"]

#: called as `hook(rank, name)` before a rank starts a collective; may sleep (a slow rank) or raise (a dying one)
Hook = Callable[[int, str], None]


@dataclass(frozen=True, kw_only=True)
class Call:
    """What the ranks must agree on, in the order in which differences are reported."""

    name: str
    op: str
    dtype: torch.dtype = torch.uint8
    sizes: tuple[int, ...] = ()
    root: int | None = None

    def difference(self, other: Call, rank: int, other_rank: int) -> str | None:
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if mine != theirs:
                return f"{one.name} is {mine!r} on rank {rank} and {theirs!r} on rank {other_rank}"
        return None


@dataclass(kw_only=True)
class Part:
    """One rank's share of a collective; `output` is what the collective fills (for some ops the input itself)."""

    call: Call
    tensor: torch.Tensor
    output: torch.Tensor
    send_sizes: list[int] = field(default_factory=list)
    recv_sizes: list[int] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class Meeting:
    """A collective for which some or all ranks have come."""

    parts: dict[int, Part] = field(default_factory=dict)
    finished: bool = False

    def in_rank_order(self) -> list[Part]:
        return [self.parts[rank] for rank in sorted(self.parts)]


class Hub:
    """Where the ranks meet. `failure`, once set, ends every collective that is not finished."""

    def __init__(self, world_size: int, ordered: bool, hook: Hook | None) -> None:
        self.world_size = world_size
        self.ordered = ordered
        self.hook = hook
        self.failure: str | None = None
        self.changed = threading.Condition()
        self.left: set[int] = set()
        self._open: dict[Hashable, Meeting] = {}
        self._started: Counter[Hashable] = Counter()

    def join(self, rank: int, part: Part) -> Meeting:
        """Add a rank's part; the rank that comes last does the work."""
        if self.hook is not None:
            self.hook(rank, part.call.name)
        with self.changed:
            self._check_open(rank, part.call.name)
            key = self._key(rank, part.call.name)
            meeting = self._open.setdefault(key, Meeting())
            self._check_agreement(meeting, rank, part.call)
            meeting.parts[rank] = part
            complete = len(meeting.parts) == self.world_size
            if complete:
                del self._open[key]
        if complete:
            self._finish(meeting)
        return meeting

    def obstacle(self, meeting: Meeting) -> str | None:
        """Why a meeting will never finish, as far as is known."""
        gone = self.left - meeting.parts.keys()
        if self.failure is None and gone:
            return f"rank {min(gone)} left the group and never came"
        return self.failure

    def fail(self, reason: str) -> None:
        with self.changed:
            self.failure = self.failure or reason
            self.changed.notify_all()

    def leave(self, rank: int) -> None:
        with self.changed:
            self.left.add(rank)
            self.changed.notify_all()

    def _key(self, rank: int, name: str) -> Hashable:
        """Equal keys meet: the rank's n-th collective, or its n-th one of this name."""
        sequence = None if self.ordered else name
        if not self.ordered and (name, self._started[rank, name]) in self._open:
            raise UsageError(f"{name}: rank {rank} started it again while the first one is under way")
        self._started[rank, sequence] += 1
        return sequence, self._started[rank, sequence]

    def _check_open(self, rank: int, name: str) -> None:
        if rank in self.left:
            raise UsageError(f"{name}: the transport of rank {rank} is closed")
        if self.failure is not None:
            raise TransportError(f"{name}: {self.failure}")

    def _check_agreement(self, meeting: Meeting, rank: int, call: Call) -> None:
        for other, part in meeting.parts.items():
            self._refuse(call.name, part.call.difference(call, other, rank))

    def _refuse(self, name: str, difference: str | None) -> None:
        if difference is not None:
            self.fail(f"ranks disagree: {difference}")
            raise TransportError(f"{name}: {self.failure}")

    @torch.no_grad()
    def _finish(self, meeting: Meeting) -> None:
        parts = meeting.in_rank_order()
        self._refuse(parts[0].call.name, _split_difference(parts))
        OPERATIONS[parts[0].call.op](parts)
        with self.changed:
            meeting.finished = True
            self.changed.notify_all()


def _split_difference(parts: list[Part]) -> str | None:
    """The first pair of ranks of an all_to_all that expect different lengths."""
    for sender, part in enumerate(parts):
        for receiver, size in enumerate(part.send_sizes):
            expected = parts[receiver].recv_sizes[sender]
            if size != expected:
                return f"rank {sender} sends {size} bytes to rank {receiver}, which expects {expected}"
    return None


def _all_reduce(parts: list[Part]) -> None:
    total = parts[0].tensor.clone()
    for part in parts[1:]:
        total += part.tensor
    for part in parts:
        part.output.copy_(total)


def _all_gather(parts: list[Part]) -> None:
    joined = torch.cat([part.tensor for part in parts])
    for part in parts:
        part.output.copy_(joined)


def _all_to_all(parts: list[Part]) -> None:
    sent = [part.tensor.split(part.send_sizes) for part in parts]
    for rank, part in enumerate(parts):
        part.output.copy_(torch.cat([pieces[rank] for pieces in sent]))


def _broadcast(parts: list[Part]) -> None:
    root = parts[0].call.root or 0
    for part in parts:
        part.output.copy_(parts[root].tensor)


def _barrier(parts: list[Part]) -> None:
    """Nothing to move."""


OPERATIONS: dict[str, Callable[[list[Part]], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "barrier": _barrier,
}
