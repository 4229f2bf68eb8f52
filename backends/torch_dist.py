"""A transport over a torch.distributed process group: Gloo for CPU tensors, NCCL for CUDA tensors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist

from ..compressors.errors import TransportError, TransportTimeout, UsageError
from .transport import Transport, Work, sleep_until

__all__ = ["TorchTransport"]

#: seconds after which a sleeping wait looks up, so that Ctrl-C is heard
SLICE = 0.5


class _TorchWork(Work):
    """`work` is c10d's; None where nothing had to be sent. `result` makes the result once it is done."""

    def __init__(self, work: dist.Work | None, name: str, result: Callable[[], torch.Tensor], sleeps: bool) -> None:
        self._work = work
        self._name = name
        self._make_result = result
        self._sleeps = sleeps
        self._result: torch.Tensor | None = None

    def done(self) -> bool:
        return self._work is None or self._work.is_completed()

    def wait(self, timeout: float) -> torch.Tensor:
        if self._result is None:
            self._settle(timeout)
            self._result = self._make_result()
        return self._result

    def _settle(self, timeout: float) -> None:
        if self._work is None:
            return
        with _translated(self._name):
            arrived = _sleep(self._work, timeout) if self._sleeps else sleep_until(self.done, timeout)
            if arrived:
                # raises what went wrong; on CUDA, makes the current stream wait for NCCL's
                self._work.wait()
        if not arrived:
            raise TransportTimeout(f"{self._name}: not finished within {timeout:g} s; another rank has not come")


class TorchTransport(Transport):
    """Collectives over a process group that the caller made and keeps.

    CUDA tensors: a collective starts after what the current stream holds at that moment; `wait` blocks the
    caller until it is done, and the result may then be used on the current stream.

    torch matches collectives by order alone: where ranks disagree about a size or a dtype, Gloo ends the
    process. After a timeout the group still waits for the late rank, for as long as the `timeout` that
    `init_process_group` was given (30 minutes); until then a process with such a group may not end by itself.

    Args:
        group: the process group, as `torch.distributed.new_group` returned it; None is the default group.

    Raises:
        UsageError: torch.distributed is not initialised, or this process is not in the group.
    """

    kind: ClassVar[str] = "torch.distributed"
    sum_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset(
        {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64}
    )

    def __init__(self, group: dist.ProcessGroup | int | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            remedy = 'call torch.distributed.init_process_group("gloo" or "nccl") first, under torchrun for instance'
            raise UsageError(f"torch.distributed is not initialised: {remedy}")
        # an int is what `new_group` returns to the processes that it leaves out
        if isinstance(group, int) or dist.get_rank(group) < 0:
            raise UsageError(f"rank {dist.get_rank()} of torch.distributed is not a member of the given group")
        self._group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self._sleeps = dist.get_backend(group) == "gloo"
        self.host = _host()

    def all_reduce(self, tensor: torch.Tensor, name: str) -> Work:
        self._check_sum(tensor, name)
        with _translated(name):
            work = dist.all_reduce(tensor, group=self._group, async_op=True) if tensor.numel() else None
        return self._work(work, name, lambda: tensor)

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int], name: str) -> Work:
        self._check_gather(tensor, sizes, name)
        if min(sizes) < max(sizes):
            # torch gathers equal lengths only; padding would travel
            return self.all_to_all(tensor.repeat(self.world_size), [tensor.numel()] * self.world_size, sizes, name)
        slots = tensor.new_empty(self.world_size, tensor.numel())
        with _translated(name):
            work = dist.all_gather(list(slots), tensor, group=self._group, async_op=True) if slots.numel() else None
        return self._work(work, name, lambda: slots.view(-1))

    def all_to_all(self, tensor: torch.Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int], name: str) -> Work:
        self._check_all_to_all(tensor, send_sizes, recv_sizes, name)
        received = tensor.new_empty(sum(recv_sizes))
        with _translated(name):
            work = dist.all_to_all_single(
                received, tensor, list(recv_sizes), list(send_sizes), group=self._group, async_op=True
            )
        return self._work(work, name, lambda: received)

    def broadcast(self, tensor: torch.Tensor, root: int, name: str) -> Work:
        self._check_root(tensor, root, name)
        source = root if self._group is None else dist.get_global_rank(self._group, root)
        with _translated(name):
            work = dist.broadcast(tensor, source, group=self._group, async_op=True) if tensor.numel() else None
        return self._work(work, name, lambda: tensor)

    def barrier(self, name: str, timeout: float) -> None:
        nothing = torch.empty(0)
        with _translated(name):
            work = dist.barrier(group=self._group, async_op=True)
        self._work(work, name, lambda: nothing).wait(timeout)

    def _work(self, work: dist.Work | None, name: str, result: Callable[[], torch.Tensor]) -> _TorchWork:
        return _TorchWork(work, name, result, self._sleeps)


def _host() -> int | None:
    """The host, as torchrun or DeepSpeed's launcher number it; without them, as equal numbers of ranks per host do."""
    said = (os.environ.get(name, "") for name in ("GROUP_RANK", "CROSS_RANK"))
    for number in filter(str.isdecimal, said):
        return int(number)
    per_host = os.environ.get("LOCAL_WORLD_SIZE", "")
    return dist.get_rank() // int(per_host) if per_host.isdecimal() and int(per_host) else None


def _sleep(work: dist.Work, timeout: float) -> bool:
    """Let Gloo wake this thread: quicker than looking again and again. NCCL's wait must not be used so:
    it destroys the communicator when its time is over.
    """
    deadline = time.monotonic() + timeout
    while not work.is_completed():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        # wait counts whole milliseconds, 0 for ever; what it raises is either "not yet" or raised again later
        with suppress(RuntimeError):
            work.wait(timedelta(seconds=max(1e-3, min(left, SLICE))))
    return True


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise TransportError(f"{name}: torch.distributed failed: {error}") from error
