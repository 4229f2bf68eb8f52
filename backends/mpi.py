"""A transport over MPI, through mpi4py."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ..compressors.errors import (
    GradwireError,
    MissingDependencyError,
    TransportError,
    TransportTimeout,
    UnsupportedError,
    UsageError,
)
from .transport import Transport, Work, sleep_until

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MpiTransport"]

#: what an `int` of the MPI interface holds; counts and displacements have this type up to MPI 3
LARGEST_COUNT = 2**31 - 1

# MPI may have been initialised so that only one thread at a time may call it, whatever the communicator.
_calls = threading.RLock()


class _MpiWork(Work):
    """`buffers` is what MPI reads and writes; `result` makes the result once it is done."""

    def __init__(self, request: MPI.Request, name: str, buffers: object, result: Callable[[], torch.Tensor]) -> None:
        self._request = request
        self._name = name
        self._buffers = buffers
        self._make_result = result
        self._result: torch.Tensor | None = None
        self._failure: TransportError | None = None

    def done(self) -> bool:
        return self._failure is not None or self._test()

    def wait(self, timeout: float) -> torch.Tensor:
        if not sleep_until(self.done, timeout):
            raise TransportTimeout(f"{self._name}: not finished within {timeout:g} s; another rank has not come")
        if self._failure is not None:
            raise self._failure
        if self._result is None:
            self._result = self._make_result()
        return self._result

    def _test(self) -> bool:
        try:
            with _translated(self._name), _calls:
                return self._request.Test()
        except TransportError as error:
            self._failure = error  # for `wait` to raise
            return True


class MpiTransport(Transport):
    """Collectives over a duplicate of an MPI communicator; making one is itself collective, and so is `close`.

    MPI moves data while a rank of it starts, looks at or waits for a collective, not in between. Where ranks
    disagree about a size, MPI reports truncation, or nothing at all. After a timeout the end of the process waits
    for the late rank too; start programs by `python -m mpi4py` and an error ends all ranks at once.

    Args:
        comm: an intracommunicator of mpi4py; None is `MPI.COMM_WORLD`.
        cuda_aware: this MPI takes device pointers. Without it CUDA tensors are copied to the host and back.

    Raises:
        MissingDependencyError: mpi4py cannot be imported.
    """

    kind: ClassVar[str] = "mpi"
    sum_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})

    def __init__(self, comm: MPI.Comm | None = None, *, cuda_aware: bool = False) -> None:
        self._mpi = _import_mpi()
        self._cuda_aware = cuda_aware
        with _translated("MpiTransport"), _calls:
            self._comm = self._checked(comm).Dup()
            self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self.rank = self._comm.Get_rank()
        self.world_size = self._comm.Get_size()
        self.any_thread = self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE
        self.host = self._first_of_host()
        self._under_way: deque[_MpiWork] = deque()

    def all_reduce(self, tensor: torch.Tensor, name: str) -> Work:
        self._check_sum(tensor, name)
        _check_count(tensor.numel(), name)
        host = self._host(tensor)
        return self._start(
            name,
            lambda: self._comm.Iallreduce(self._mpi.IN_PLACE, _buffer(host)),
            (tensor, host),
            lambda: _written_back(host, tensor),
        )

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int], name: str) -> Work:
        self._check_gather(tensor, sizes, name)
        _check_count(sum(sizes), name)
        host = self._host(tensor)
        received = host.new_empty(sum(sizes))
        return self._start(
            name,
            lambda: self._comm.Iallgatherv(_buffer(host), [_buffer(received), list(sizes)]),
            (host, received),
            lambda: received.to(tensor.device),
        )

    def all_to_all(self, tensor: torch.Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int], name: str) -> Work:
        self._check_all_to_all(tensor, send_sizes, recv_sizes, name)
        _check_count(max(sum(send_sizes), sum(recv_sizes)), name)
        host = self._host(tensor)
        received = host.new_empty(sum(recv_sizes))
        return self._start(
            name,
            lambda: self._comm.Ialltoallv([_buffer(host), list(send_sizes)], [_buffer(received), list(recv_sizes)]),
            (host, received),
            lambda: received.to(tensor.device),
        )

    def broadcast(self, tensor: torch.Tensor, root: int, name: str) -> Work:
        self._check_root(tensor, root, name)
        _check_count(tensor.numel(), name)
        host = self._host(tensor)
        return self._start(
            name,
            lambda: self._comm.Ibcast(_buffer(host), root),
            (tensor, host),
            lambda: _written_back(host, tensor),
        )

    def barrier(self, name: str, timeout: float) -> None:
        nothing = torch.empty(0)
        self._start(name, self._comm.Ibarrier, nothing, lambda: nothing).wait(timeout)

    def close(self) -> None:
        """Free the communicator. Collective; what is still under way is finished by MPI."""
        with _translated("close"), _calls:
            if self._comm != self._mpi.COMM_NULL:
                self._comm.Free()

    def _checked(self, comm: MPI.Comm | None) -> MPI.Comm:
        if comm is None:
            return self._mpi.COMM_WORLD
        if comm == self._mpi.COMM_NULL:
            raise UsageError("MpiTransport: this process is not in the given communicator, or it was freed")
        if comm.Is_inter():
            raise UsageError("MpiTransport: got an intercommunicator; merge it into an intracommunicator first")
        return comm

    def _first_of_host(self) -> int:
        """The lowest rank among those that share memory with this one."""
        with _translated("MpiTransport"), _calls:
            first = torch.tensor([self.rank])
            neighbours = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED, self.rank)
            try:
                neighbours.Bcast(_buffer(first))
            finally:
                neighbours.Free()
        return int(first)

    def _start(
        self, name: str, start: Callable[[], MPI.Request], buffers: object, result: Callable[[], torch.Tensor]
    ) -> Work:
        with _translated(name), _calls:
            if self._comm == self._mpi.COMM_NULL:
                raise UsageError(f"{name}: the transport is closed")
            work = _MpiWork(start(), name, buffers, result)
            self._keep(work)
        return work

    def _keep(self, work: _MpiWork) -> None:
        """MPI goes on writing into the buffers of a work that the caller has dropped."""
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft()
        self._under_way.append(work)

    def _host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor where MPI can reach it, with everything in it that the device was still to write."""
        if tensor.device.type == "cuda" and self._cuda_aware:
            torch.cuda.current_stream(tensor.device).synchronize()
            return tensor.detach()
        return tensor.detach().cpu()


def _buffer(host: torch.Tensor) -> Any:
    return host.numpy() if host.device.type == "cpu" else host


def _written_back(host: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if host.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(host)
    return tensor


def _check_count(count: int, name: str) -> None:
    if count > LARGEST_COUNT:
        remedy = "use a smaller bucket_bytes"
        raise UnsupportedError(f"{name}: {count} elements, MPI counts no more than {LARGEST_COUNT}: {remedy}")


def _import_mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingDependencyError("mpi4py", "mpi", "MpiTransport") from error
    return MPI


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """mpi4py's own exception is a RuntimeError; too large or too small arguments are other ones."""
    try:
        yield
    except GradwireError:
        raise
    except (RuntimeError, ValueError, OverflowError) as error:
        raise TransportError(f"{name}: MPI failed: {error}") from error
