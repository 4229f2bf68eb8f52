"""N ranks as threads of one process. It moves no bytes over a wire and is the strictest of the transports:
whatever two ranks do differently ends in an error on all of them that names the difference.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from ..compressors.errors import ConfigError, TransportError, TransportTimeout
from .hub import Call, Hook, Hub, Meeting, Part
from .transport import Transport, Work

__all__ = ["LocalTransport", "run_ranks"]

T = TypeVar("T")


class _LocalWork(Work):
    def __init__(self, hub: Hub, meeting: Meeting, part: Part) -> None:
        self._hub = hub
        self._meeting = meeting
        self._part = part

    def done(self) -> bool:
        with self._hub.changed:
            return self._settled()

    def wait(self, timeout: float) -> torch.Tensor:
        name = self._part.call.name
        with self._hub.changed:
            self._hub.changed.wait_for(self._settled, timeout)
            if self._meeting.finished:
                return self._part.output
            obstacle = self._hub.obstacle(self._meeting)
            if obstacle is not None:
                raise TransportError(f"{name}: {obstacle}")
            missing = sorted(set(range(self._hub.world_size)) - self._meeting.parts.keys())
        raise TransportTimeout(f"{name}: not finished within {timeout:g} s; ranks {missing} have not come")

    def _settled(self) -> bool:
        return self._meeting.finished or self._hub.obstacle(self._meeting) is not None


class LocalTransport(Transport):
    """One rank of a group of threads. Made by `run_ranks` or `LocalTransport.group`.

    A wait that ran out of time breaks nothing: it may be repeated, and the late rank may still come. A
    disagreement between ranks ends the group: every open and every later collective raises it.
    """

    kind: ClassVar[str] = "local"
    sum_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset(
        {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64}
    )

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub = hub
        self.rank = rank
        self.world_size = hub.world_size
        self.ordered = hub.ordered

    @classmethod
    def group(
        cls, world_size: int, *, ordered: bool = True, hook: Hook | None = None, hosts: Sequence[int] | None = None
    ) -> list[LocalTransport]:
        """The transports of a new group, in rank order; see `run_ranks` for the arguments."""
        if world_size < 1:
            raise ConfigError(f"world_size is {world_size}, a group needs at least 1 rank")
        if hosts is not None and len(hosts) != world_size:
            raise ConfigError(f"hosts are {list(hosts)}, expected one number for each of {world_size} ranks")
        hub = Hub(world_size, ordered, hook)
        ranks: list[LocalTransport] = [cls(hub, rank) for rank in range(world_size)]
        for rank, host in zip(ranks, hosts or (), strict=False):
            rank.host = host
        return ranks

    def all_reduce(self, tensor: torch.Tensor, name: str) -> Work:
        self._check_sum(tensor, name)
        call = Call(name=name, op="all_reduce", dtype=tensor.dtype, sizes=(tensor.numel(),))
        return self._start(Part(call=call, tensor=tensor, output=tensor))

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int], name: str) -> Work:
        self._check_gather(tensor, sizes, name)
        call = Call(name=name, op="all_gather", sizes=tuple(sizes))
        return self._start(Part(call=call, tensor=tensor, output=tensor.new_empty(sum(sizes))))

    def all_to_all(self, tensor: torch.Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int], name: str) -> Work:
        self._check_all_to_all(tensor, send_sizes, recv_sizes, name)
        part = Part(
            call=Call(name=name, op="all_to_all"),
            tensor=tensor,
            output=tensor.new_empty(sum(recv_sizes)),
            send_sizes=list(send_sizes),
            recv_sizes=list(recv_sizes),
        )
        return self._start(part)

    def broadcast(self, tensor: torch.Tensor, root: int, name: str) -> Work:
        self._check_root(tensor, root, name)
        call = Call(name=name, op="broadcast", sizes=(tensor.numel(),), root=root)
        return self._start(Part(call=call, tensor=tensor, output=tensor))

    def barrier(self, name: str, timeout: float) -> None:
        nothing = torch.empty(0, dtype=torch.uint8)
        self._start(Part(call=Call(name=name, op="barrier"), tensor=nothing, output=nothing)).wait(timeout)

    def close(self) -> None:
        """Leave the group: what the other ranks start from now on raises there at once."""
        self.hub.leave(self.rank)

    def _start(self, part: Part) -> Work:
        return _LocalWork(self.hub, self.hub.join(self.rank, part), part)


def run_ranks(
    world_size: int,
    function: Callable[[LocalTransport], T],
    *,
    timeout: float = 60.0,
    ordered: bool = True,
    hook: Hook | None = None,
    grace: float = 5.0,
    hosts: Sequence[int] | None = None,
) -> list[T]:
    """Run `function(transport)` on `world_size` threads, one per rank, and return the results in rank order.

    Args:
        world_size: number of ranks.
        function: what each rank does. A rank that returns has left the group.
        timeout: seconds for all of it.
        ordered: collectives must be started in the same order on all ranks; else they meet by name alone,
            as in Horovod, and one rank cannot have two of the same name under way.
        hook: called as `hook(rank, name)` before each collective, on the rank that starts it; it may sleep
            or raise.
        grace: seconds that the ranks get to end after `timeout`.
        hosts: by rank, which of several hosts it stands for; None: nobody knows.

    Raises:
        TransportTimeout: a rank was not done in time. Its thread is left behind.
        Exception: what the first failing rank raised, with its rank in a note. The others were woken by a
            TransportError that names it.
    """
    transports = LocalTransport.group(world_size, ordered=ordered, hook=hook, hosts=hosts)
    hub = transports[0].hub
    results: dict[int, T] = {}
    failures: list[tuple[int, BaseException]] = []

    def run(transport: LocalTransport) -> None:
        try:
            results[transport.rank] = function(transport)
        except BaseException as error:  # raised again by the caller's thread
            failures.append((transport.rank, error))
            hub.fail(f"rank {transport.rank} failed with {error!r}")
        finally:
            transport.close()

    threads = [threading.Thread(target=run, args=(one,), name=f"rank {one.rank}", daemon=True) for one in transports]
    for thread in threads:
        thread.start()
    late = _join(threads, timeout)
    out_of_time = late and not failures
    hub.fail(f"the time limit of {timeout:g} s has passed")
    _join(threads, grace)
    if out_of_time:
        raise TransportTimeout(f"{', '.join(late)} of {world_size} still ran after {timeout:g} s")
    if failures:
        _raise_with_rank(*failures[0])
    return [results[rank] for rank in range(world_size)]


def _join(threads: list[threading.Thread], timeout: float) -> list[str]:
    """Wait for the threads; the names of those that are still alive."""
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]


def _raise_with_rank(rank: int, error: BaseException) -> None:
    # Exception.add_note is Python 3.11; the attribute alone does no harm in 3.10
    notes: Any = getattr(error, "__notes__", [])
    error.__notes__ = [*notes, f"raised on rank {rank}"]
    raise error
