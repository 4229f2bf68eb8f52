"""A transport that notes what a rank hands to the one it wraps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from gradwire.backends.transport import Transport, Work

__all__ = ["Listening", "Sent"]


class Sent(NamedTuple):
    """A collective: its kind, its name and the bytes that this rank sends to others (an all-reduce as a ring)."""

    kind: str
    name: str
    nbytes: int


class _Heard(Work):
    """Is open until somebody has waited for it."""

    def __init__(self, inner: Work, name: str, opened: set[str]) -> None:
        self._inner, self._name, self._opened = inner, name, opened
        opened.add(name)

    def done(self) -> bool:
        return self._inner.done()

    def wait(self, timeout: float) -> torch.Tensor:
        self._opened.discard(self._name)
        return self._inner.wait(timeout)


class Listening(Transport):
    """`sent` lists what was started, `open` names what was started and not waited for."""

    kind = "listening"

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.rank, self.world_size, self.ordered = inner.rank, inner.world_size, inner.ordered
        self.host = inner.host
        self.sum_dtypes = inner.sum_dtypes  # pyright: ignore[reportAttributeAccessIssue] - the class of `inner` decides
        self.sent: list[Sent] = []
        self.open: set[str] = set()

    def all_reduce(self, tensor: torch.Tensor, name: str) -> Work:
        self.sent.append(Sent("all_reduce", name, 2 * tensor.nbytes * (self.world_size - 1) // self.world_size))
        return _Heard(self.inner.all_reduce(tensor, name), name, self.open)

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int], name: str) -> Work:
        self.sent.append(Sent("all_gather", name, tensor.nbytes * (self.world_size - 1)))
        return _Heard(self.inner.all_gather(tensor, sizes, name), name, self.open)

    def all_to_all(self, tensor: torch.Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int], name: str) -> Work:
        self.sent.append(Sent("all_to_all", name, tensor.nbytes - send_sizes[self.rank]))
        return _Heard(self.inner.all_to_all(tensor, send_sizes, recv_sizes, name), name, self.open)

    def broadcast(self, tensor: torch.Tensor, root: int, name: str) -> Work:
        raise AssertionError(f"{name}: a reducer broadcasts nothing")

    def barrier(self, name: str, timeout: float) -> None:
        raise AssertionError(f"{name}: a reducer needs no barrier")
