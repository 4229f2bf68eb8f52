"""What a transport is: a handful of collectives over one group of ranks, each asynchronous, each with a time limit.

Every collective has an explicit name, equal on all ranks. All sizes are known to the caller beforehand: a
transport never exchanges sizes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from ..compressors.errors import UsageError

__all__ = ["Transport", "Work", "sleep_until"]

#: seconds between two looks at a collective: the first pause and the longest. Longer pauses were measured to
#: slow down MPI, which only moves data while it is being looked at; these take about 5 % of a core.
PAUSES = (20e-6, 200e-6)


class Work(ABC):
    """A collective under way. It keeps its buffers alive until it is dropped."""

    @abstractmethod
    def done(self) -> bool:
        """True once `wait` would not block (also after a failure)."""

    @abstractmethod
    def wait(self, timeout: float) -> torch.Tensor:
        """The result, or an error after `timeout` seconds. Sleeps while it waits; may be called again.

        Raises:
            TransportTimeout: the other ranks did not come in time; the text names the collective.
            TransportError: the collective failed.
        """


class Transport(ABC):
    """A group of ranks that can run collectives together.

    Attributes:
        rank: this process within the group, 0 to `world_size - 1`.
        world_size: number of ranks in the group.
        ordered: collectives must be started in the same order on all ranks; False where names are matched instead.
        any_thread: any thread may start and look at collectives, whatever the others do.
        host: a number that all ranks on this rank's host have, and no others; None where nobody knows.

    Starting a collective may raise a TransportError already. From then until its `wait` has returned, its
    tensor belongs to the transport.
    """

    #: short name for messages and statistics
    kind: ClassVar[str]
    #: dtypes that `all_reduce` can add
    sum_dtypes: ClassVar[frozenset[torch.dtype]]

    rank: int
    world_size: int
    ordered: bool = True
    any_thread: bool = True
    host: int | None = None

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, name: str) -> Work:
        """Sum over the ranks, in place and bitwise equal on all of them. 1-D, contiguous, one of `sum_dtypes`."""

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int], name: str) -> Work:
        """Concatenate the ranks' uint8 vectors in rank order, in a new tensor; `sizes[r]` is what rank r sends."""

    @abstractmethod
    def all_to_all(self, tensor: torch.Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int], name: str) -> Work:
        """Send consecutive parts of a uint8 vector to ranks 0, 1, …; a new tensor holds what they sent here."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, root: int, name: str) -> Work:
        """Overwrite the uint8 vector with the one of rank `root`."""

    @abstractmethod
    def barrier(self, name: str, timeout: float) -> None:
        """Return once every rank has come here."""

    def close(self) -> None:  # noqa: B027  (most transports hold nothing)
        """Release what the transport holds. Never closes a group that it was given."""

    # Checks shared by all transports: a wrong size would abort the process or give garbage further down.

    def _check_gather(self, tensor: torch.Tensor, sizes: Sequence[int], name: str) -> None:
        self._check_bytes(tensor, name)
        self._check_sizes(sizes, name)
        if tensor.numel() != sizes[self.rank]:
            raise UsageError(f"{name}: rank {self.rank} sends {tensor.numel()} bytes, sizes say {sizes[self.rank]}")

    def _check_all_to_all(
        self, tensor: torch.Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int], name: str
    ) -> None:
        self._check_bytes(tensor, name)
        self._check_sizes(send_sizes, name)
        self._check_sizes(recv_sizes, name)
        if tensor.numel() != sum(send_sizes):
            raise UsageError(f"{name}: {tensor.numel()} bytes to send, send_sizes add up to {sum(send_sizes)}")
        if send_sizes[self.rank] != recv_sizes[self.rank]:
            own = f"sends {send_sizes[self.rank]} bytes to itself and expects {recv_sizes[self.rank]}"
            raise UsageError(f"{name}: rank {self.rank} {own}")

    def _check_sum(self, tensor: torch.Tensor, name: str) -> None:
        self._check_vector(tensor, name)
        if tensor.dtype not in self.sum_dtypes:
            allowed = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in self.sum_dtypes))
            raise UsageError(f"{name}: {self.kind} cannot add {tensor.dtype}; it adds {allowed}")

    def _check_root(self, tensor: torch.Tensor, root: int, name: str) -> None:
        self._check_bytes(tensor, name)
        if not 0 <= root < self.world_size:
            raise UsageError(f"{name}: root is {root}, the group has ranks 0 to {self.world_size - 1}")

    def _check_sizes(self, sizes: Sequence[int], name: str) -> None:
        if len(sizes) != self.world_size or min(sizes) < 0:
            raise UsageError(f"{name}: sizes are {list(sizes)}, expected {self.world_size} lengths, none negative")

    def _check_bytes(self, tensor: torch.Tensor, name: str) -> None:
        self._check_vector(tensor, name)
        if tensor.dtype != torch.uint8:
            raise UsageError(f"{name}: got {tensor.dtype}, bytes travel as uint8")

    def _check_vector(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.dim() != 1 or not tensor.is_contiguous():
            raise UsageError(f"{name}: got shape {tuple(tensor.shape)}, expected a contiguous vector")


def sleep_until(done: Callable[[], bool], timeout: float) -> bool:
    """Sleep until `done()` holds, for at most `timeout` seconds; whether it does."""
    deadline = time.monotonic() + timeout
    pause, longest = PAUSES
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(1.5 * pause, longest)
    return True
