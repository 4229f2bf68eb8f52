"""One owner's gradients on their way through Horovod: from its requests to the reducer's calls.

An optimizer's tensors are learned in its first step, since only then it is known which of them come this way (sparse
gradients, for example, go Horovod's own). With `groups=` they are known beforehand: Horovod asks for one real handle
per group, so each group is a bucket.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import groupby

import torch

from ..backends import GradientReducer, Statistics
from ..backends.statistics import merge
from ..compressors import TensorMeta
from ._handle import SleepingHandle
from ._host import hvd, mpi_ops
from .transport import HorovodTransport, HorovodWork

__all__ = ["Session"]


#: gradients are handed to the reducer when so many bytes of them have come
BATCH_BYTES = 1 << 18


class Session:
    """The gradients of one owner (an optimizer, or one call such as `hvd.allreduce`) over one process set.

    Args:
        make_reducer: makes a reducer over a transport, under a name, with the user's options.
        process_set: the ranks.
        kind: prefix of all collectives' names, which a number makes unique. Ranks must first use sessions of one kind
            in the same order; what counts is the first wait (with groups: the first gradient).
        order: the tensors' names in the order in which backward is expected to produce them.
        donate: the gradients' storage may be overwritten and kept.
    """

    def __init__(
        self,
        make_reducer: Callable[[HorovodTransport, str], GradientReducer],
        process_set: hvd.ProcessSet,
        kind: str,
        order: Sequence[str],
        *,
        donate: bool,
    ) -> None:
        self._donate = donate
        self.transport = HorovodTransport(process_set)
        self._make_reducer = make_reducer
        self._kind = kind
        self._rank_of = {tensor: number for number, tensor in enumerate(order)}
        self._reducers: list[GradientReducer] = []
        self._homes: dict[str, GradientReducer] = {}
        self._homeless: dict[str, torch.Tensor] = {}
        self._submitted: set[str] = set()
        self._batch: list[tuple[str, torch.Tensor]] = []
        self._batch_bytes = 0
        #: Horovod's open handles of the step
        self.handles: object = None
        self._reduced: dict[str, weakref.ref[torch.Tensor]] = {}

    @cached_property
    def _name(self) -> str:
        return _numbered(self._kind)

    @property
    def in_step(self) -> bool:
        """Whether gradients were submitted and none was taken yet."""
        return bool(self._submitted)

    @property
    def statistics(self) -> Statistics:
        """The account of all reducers."""
        return merge([reducer.statistics for reducer in self._reducers])

    def expect(self, metas: Sequence[TensorMeta], groups: Sequence[Sequence[str]]) -> None:
        """Tensors that will be submitted, group by group. The ranks compare notes at once."""
        reducer = self._make_reducer(self.transport, f"{self._name}.{len(self._reducers)}")
        reducer.register(metas, groups)
        self._reducers.append(reducer)
        self._homes.update(dict.fromkeys((meta.name for meta in metas), reducer))

    def submit(self, name: str, grad: torch.Tensor, holder: torch.Tensor | None) -> None:
        """Hand over a gradient; `holder` will hold the mean. A name that comes twice: Horovod dropped a step."""
        if name in self._submitted:
            self.abandon()
        self._submitted.add(name)
        if holder is not None:
            self._reduced[name] = weakref.ref(holder)
        self._batch.append((name, grad))
        self._batch_bytes += grad.nbytes
        # after the last one the exchange need not wait for the first mean to be taken
        if self._batch_bytes >= BATCH_BYTES or len(self._submitted) == len(self._homes):
            self._hand_over()

    def take(self, name: str, scale: float) -> torch.Tensor:
        """The mean of a gradient, times `scale`. By now Horovod has submitted all that belongs to this step."""
        if self._submitted:
            self._hand_over()
            self._house()
            for reducer in self._reducers:
                reducer.flush()
            self._submitted.clear()
        return self._homes[name].wait(name, scale)

    def pending(self, name: str) -> torch.Tensor:
        """This rank's part of the update that is still owed; see `GradientReducer.pending`."""
        return self._homes[name].pending(name)

    def handle(self, name: str) -> SleepingHandle:
        """A handle for Horovod to wait for and to clear: that of the collective which carries the tensor."""
        self._hand_over()
        reducer = self._homes[name]
        work = reducer.work(name)
        if not isinstance(work, HorovodWork):
            # one rank alone has no collective; an empty one gives a handle
            nothing, alone = torch.empty(0), f"{self._name}.alone.{name}"
            handle = hvd.allreduce_async_(nothing, name=alone, process_set=self.transport.process_set)
            work = HorovodWork(handle, nothing, 0, alone)
        return SleepingHandle(work.handle, partial(_outlast, work, reducer))

    def is_reduced(self, name: str, holder: torch.Tensor | None) -> bool:
        """Whether this very tensor holds the mean of the last step, and no new step has begun."""
        return not self.in_step and name in self._reduced and self._reduced[name]() is holder

    def _hand_over(self) -> None:
        """Give the reducers what was submitted. Many small gradients in a row cost less than one between backwards."""
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        for reducer, arrivals in groupby(batch, key=lambda arrival: self._homes.get(arrival[0])):
            if reducer is None:
                self._homeless.update(arrivals)
            else:
                reducer.ready_all(arrivals, donate=self._donate)

    def _house(self) -> None:
        """Give what came for the first time a reducer, and start it."""
        if not self._homeless:
            return
        grads = dict(sorted(self._homeless.items(), key=lambda item: self._rank_of.get(item[0], len(self._rank_of))))
        self._homeless = {}
        self.expect([meta_of(name, grad) for name, grad in grads.items()], [])
        self._reducers[-1].ready_all(grads.items(), donate=self._donate)

    def abandon(self) -> None:
        """Drop the open step; all ranks must do so."""
        self._hand_over()
        self._homeless = {}
        self._submitted.clear()
        for reducer in self._reducers:
            reducer.abandon()


def _outlast(work: HorovodWork, reducer: GradientReducer) -> None:
    """Sleep until a collective has ended; one that takes too long ends its reducer, as it does in a step."""
    with reducer.breaking():
        work.sleep(reducer.timeout)


def meta_of(name: str, tensor: torch.Tensor) -> TensorMeta:
    """What all ranks know about a tensor."""
    return TensorMeta(name=name, shape=tuple(tensor.shape), dtype=tensor.dtype)


#: how many sessions there are of each kind, since the last hvd.init()
_sessions_by_kind: tuple[object, Counter[str]] = (None, Counter())


def _numbered(kind: str) -> str:
    global _sessions_by_kind  # noqa: PLW0603 - Horovod's names are global to the process as well
    if _sessions_by_kind[0] is not mpi_ops._handle_map:
        _sessions_by_kind = (mpi_ops._handle_map, Counter())
    counter = _sessions_by_kind[1]
    counter[kind] += 1
    return f"{kind}.{counter[kind] - 1}"
