"""A transport over Horovod: its collectives, each with our name, a time limit and gradwire's errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch

from ..backends.transport import Transport, Work, sleep_until
from ..compressors.errors import TransportError, TransportTimeout, UnsupportedError, UsageError
from ._host import hvd, mpi_ops

__all__ = ["CollectiveError", "HorovodTransport", "HorovodWork", "JoinError"]


class CollectiveError(TransportError, hvd.HorovodInternalError):
    """Horovod reported that a collective failed. `hvd.elastic.run` recovers from it."""


class JoinError(TransportError, UnsupportedError):
    """A rank is in `hvd.join()` while others gather. Not for `hvd.elastic.run`: a retry would end here again."""


class HorovodWork(Work):
    """A collective of Horovod under way.

    Its handle may be handed to Horovod as the handle of a gradient: Horovod then puts its own entry into
    `_handle_map`, waits for it and clears it. Such a handle is never cleared here.

    Attributes:
        handle: what Horovod calls the collective by.
    """

    def __init__(self, handle: int, output: torch.Tensor, size: int, name: str) -> None:
        self.handle = handle
        self._map = mpi_ops._handle_map
        self._entry = self._map[handle]  # keeps input and output alive, whatever Horovod does with its map
        self._output = output
        self._size = size
        self._name = name
        self._result: torch.Tensor | None = None
        self._error: TransportError | None = None

    def done(self) -> bool:
        settled = self._result is not None or self._error is not None
        gone = self._map is not mpi_ops._handle_map or self.handle not in self._map
        return settled or gone or hvd.poll(self.handle)

    def sleep(self, timeout: float) -> None:
        """Return once `wait` would not block.

        Raises:
            TransportTimeout: as for `wait`.
        """
        if not sleep_until(self.done, timeout):
            raise TransportTimeout(f"{self._name}: not finished within {timeout:g} s; another rank has not come")

    def wait(self, timeout: float) -> torch.Tensor:
        self.sleep(timeout)
        if self._error is None and self._result is None:
            self._error = self._settle()
        if self._error is not None:
            raise self._error
        if self._result is None:
            self._result = self._output.view(-1)
        return self._result

    def _settle(self) -> TransportError | None:
        if self._map is not mpi_ops._handle_map:
            return TransportError(f"{self._name}: lost, Horovod was initialised again while it was under way")
        if self._map.get(self.handle) is self._entry:
            try:
                hvd.synchronize(self.handle)
            except (RuntimeError, ValueError) as error:
                return _translated(error, self._name)
        if self._output.numel() != self._size:
            return CollectiveError(f"{self._name}: got {self._output.numel()} elements, expected {self._size}")
        return None


class HorovodTransport(Transport):
    """The ranks of a Horovod process set. `hvd.init()` comes first; after another one a new transport is needed.

    Args:
        process_set: the group; None: all ranks.

    Raises:
        UsageError: Horovod is not initialised, or this rank is not in the process set.
    """

    kind: ClassVar[str] = "horovod"
    ordered = False
    sum_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset(
        {torch.float16, torch.float32, torch.float64, torch.int32, torch.int64}
    )

    def __init__(self, process_set: hvd.ProcessSet | None = None) -> None:
        if not hvd.is_initialized():
            raise UsageError("Horovod is not initialised: call hvd.init() first")
        self.process_set = hvd.global_process_set if process_set is None else process_set
        self.rank, self._ranks = _place(self.process_set)
        self.world_size = len(self._ranks)
        # where hosts have different numbers of ranks, it numbers those with as many: no more than a place in a row
        self.host = hvd.cross_rank() if mpi_ops.is_homogeneous() else None
        self._map = mpi_ops._handle_map
        self._calls: Counter[str] = Counter()

    @property
    def current(self) -> bool:
        """False once Horovod was initialised again: ranks and pending collectives are no longer valid."""
        return self._map is mpi_ops._handle_map

    def all_reduce(self, tensor: torch.Tensor, name: str) -> Work:
        self._check_sum(tensor, name)
        return self._start(partial(hvd.allreduce_async_, tensor, op=hvd.Sum), tensor.numel(), name)

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int], name: str) -> Work:
        self._check_gather(tensor, sizes, name)
        return self._start_uncached(hvd.allgather_async, tensor, sum(sizes), name)

    def all_to_all(self, tensor: torch.Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int], name: str) -> Work:
        self._check_all_to_all(tensor, send_sizes, recv_sizes, name)
        splits = torch.tensor(send_sizes, dtype=torch.int32)
        return self._start_uncached(partial(hvd.alltoall_async, splits=splits), tensor, sum(recv_sizes), name)

    def broadcast(self, tensor: torch.Tensor, root: int, name: str) -> Work:
        self._check_root(tensor, root, name)
        launch = partial(hvd.broadcast_async_, tensor, self._ranks[root])
        return self._start(launch, tensor.numel(), name)

    def barrier(self, name: str, timeout: float) -> None:
        self.all_reduce(torch.zeros(1, dtype=torch.int32), name).wait(timeout)

    def _start_uncached(self, launch: Callable[..., int], tensor: torch.Tensor, size: int, name: str) -> Work:
        """Start a collective that Horovod's response cache must not answer.

        A cached gather while a rank is in `hvd.join()` kills or hangs Horovod; one that is negotiated fails with a
        clear error. An entry counts only for the same shape, so each call takes another one than the call before.
        """
        key = f"{getattr(launch, 'func', launch).__name__} {name}"
        calls = self._calls[key]
        # the first call of a transport has a shape of its own, for it may follow an older transport's last call
        ones = (1,) * (calls % 2 if calls else 2)
        work = self._start(partial(launch, tensor.view(-1, *ones)), size, name)
        self._calls[key] += 1
        return work

    def _start(self, launch: Callable[..., int], size: int, name: str) -> Work:
        if not self.current:
            raise TransportError(f"{name}: Horovod was initialised again, this transport belongs to the time before")
        try:
            handle = launch(name=name, process_set=self.process_set)
        except (RuntimeError, ValueError) as error:
            raise _translated(error, name) from error
        output = mpi_ops._handle_map[handle][-1]
        return HorovodWork(handle, output[0] if isinstance(output, tuple) else output, size, name)


def _place(process_set: hvd.ProcessSet) -> tuple[int, list[int]]:
    """This rank within the set, and the set's ranks as Horovod counts them overall."""
    ranks, rank = process_set.ranks, hvd.rank()
    if process_set.process_set_id is None or ranks is None:
        raise UsageError(f"{process_set} is not registered: pass it to hvd.init() or hvd.add_process_set()")
    if rank not in ranks:
        raise UsageError(f"rank {rank} is not in the process set of ranks {list(ranks)}")
    return ranks.index(rank), list(ranks)


def _translated(error: Exception, name: str) -> TransportError:
    text = f"{name}: {error}"
    result: TransportError = CollectiveError(text)
    if "with Join" in text:
        result = JoinError(
            f"{name}: a rank is in hvd.join(), and Horovod gathers nothing then. Give every rank the same number "
            "of batches, or take a compressor that goes by plain all-reduce: FP16 or RandomK"
        )
    result.__cause__ = error
    return result
