"""Compressed gradients for a stock `DistributedDataParallel`: a communication hook around the usual reducer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, NoReturn, cast

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ..compressors import Compressor, TensorMeta, with_defaults
from ..compressors.errors import UsageError
from .ddp_model import ONE_HOOK, check, laid_out, name_of, names_of, own_group
from .reducer import GradientReducer
from .snapshot import StateDict
from .statistics import Statistics
from .step import Step
from .torch_dist import TorchTransport

__all__ = ["Compression", "compress"]


def compress(
    model: DistributedDataParallel,
    compressor: Compressor,
    *,
    min_numel: int = 1024,
    exchange: str = "auto",
    bucket_bytes: int = 25 << 20,
    timeout: float = 60.0,
    seed: int = 0,
    overlap: bool = True,
) -> Compression:
    """Compress the gradients that a model averages, from its next backward on; a collective operation of its ranks.

    The exchanges have a process group of their own: loss and metric collectives may come in between as they like.
    Residuals belong to parameters by name, whatever buckets DDP makes. Sparse gradients go DDP's own way. After an
    error in backward the model takes no further step: DDP does not recover from one.

    Args:
        model: not compressed yet, and without another communication hook.
        compressor: a codec, or one wrapped in memories and policies; biased ones get error feedback.
        min_numel: tensors with fewer elements travel dense.
        exchange: as for `GradientReducer`; so are the options that follow.

    Raises:
        UsageError: the model is no `DistributedDataParallel`, or has a communication hook.
        UnsupportedError: it leaves out buckets that no rank used, or is on several devices.
        ConfigError: an option is out of its range.
        MismatchError: ranks differ in an option or in the model.
        TransportError: not all ranks came to make the process group.
    """
    check(model, compressor)
    reducer = _Reducer(
        with_defaults(compressor, min_numel),
        TorchTransport(own_group(model, timeout)),
        name="ddp",
        exchange=exchange,
        bucket_bytes=bucket_bytes,
        timeout=timeout,
        seed=seed,
        overlap=overlap,
    )
    compression = Compression(model, reducer)
    try:
        model.register_comm_hook(compression, _hook)
    except RuntimeError as error:  # one of torch's built-in hooks leaves no other trace
        raise UsageError(ONE_HOOK) from error
    return compression


class _Reducer(GradientReducer):
    """DDP drops the mean of a parameter that no rank has used: what is owed for that must stay as it was."""

    #: tells their names, when all exchanges of a step have ended; a collective operation
    find_unused: Callable[[], Collection[str]] = staticmethod(tuple)

    def settle(self) -> Collection[str]:
        """End a step; the names whose means are there to take."""
        with self._lock:
            if self._arriving is not None:
                self._commit(self._settle())
            return self._untaken.copy()

    def _commit(self, step: Step) -> None:
        with self.breaking():
            unused = self.find_unused()
        states, servers = self._states.copy(), self._servers.copy()
        super()._commit(step)
        self._untaken.difference_update(unused)
        for name in self._states.keys() & unused:
            self._states[name], self._servers[name] = states.get(name, {}), servers.get(name, {})


class _Part(NamedTuple):
    """A bucket of DDP's that waits for its means."""

    buffer: torch.Tensor
    gradients: list[tuple[str, torch.Tensor]]
    future: Future[torch.Tensor]


class Compression:
    """What `compress` has attached to a model: residuals and statistics.

    Args:
        model: whose parameters are registered; a collective operation.
        reducer: takes their gradients.
    """

    def __init__(self, model: DistributedDataParallel, reducer: _Reducer) -> None:
        self._reducer = reducer
        self._group = cast(dist.ProcessGroup, model.process_group)
        self._names = names_of(model)
        # backward makes the last ones first
        reducer.register(
            [TensorMeta(name=name, shape=tuple(p.shape), dtype=p.dtype) for p, name in reversed(self._names.items())]
        )
        self._parts: list[_Part] = []
        self._missing = len(self._names)
        self._used: set[torch.Tensor] = set()
        if model.find_unused_parameters and not model.static_graph:
            reducer.find_unused = self._find_unused
            for parameter in self._names:
                parameter.register_post_accumulate_grad_hook(self._used.add)

    @property
    def compressor(self) -> Compressor:
        """With the wrappers that it was given."""
        return self._reducer.compressor

    @property
    def statistics(self) -> Statistics:
        """What was sent and how long it took."""
        return self._reducer.statistics

    def pending(self, name: str) -> torch.Tensor:
        """This rank's part of the update of a parameter that is still owed; see `GradientReducer.pending`."""
        return self._reducer.pending(name)

    def state_dict(self) -> StateDict:
        """What this rank keeps, residuals foremost; see `GradientReducer.state_dict`."""
        return self._reducer.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from a state: this rank's own, or one that `gradwire.backends.merge_states` made of all ranks'."""
        self._reducer.load_state_dict(state)

    def __getstate__(self) -> NoReturn:
        raise UsageError("a compressed model cannot be copied or pickled: do so with model.module and state_dict()")

    def _take(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """DDP hands over all its buckets in every step, in their order on all ranks; then it waits for all."""
        part = None if bucket.buffer().is_sparse else self._part(bucket)
        if part is not None:
            self._parts.append(part)
            self._missing -= len(part.gradients)
            self._reducer.ready_all(part.gradients)
        # in the first step of a static graph no bucket says that it is the last one
        if not self._missing or bucket.is_last():
            self._give()
        return allreduce_hook(self._group, bucket) if part is None else part.future

    def _part(self, bucket: GradBucket) -> _Part:
        buffer = bucket.buffer()
        future: Future[torch.Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        return _Part(buffer, [(name_of(p, self._names), laid_out(gradient, p)) for p, gradient in pairs], future)

    def _give(self) -> None:
        """Settle the step: here backward waits for the other ranks."""
        parts, self._parts, self._missing = self._parts, [], len(self._names)
        there = self._reducer.settle()
        for buffer, gradients, future in parts:
            for name, gradient in gradients:
                if name in there:
                    self._reducer.wait(name, out=gradient)
            future.set_result(buffer)

    def _find_unused(self) -> set[str]:
        """As DDP finds them; it does not say which."""
        flags = [parameter in self._used for parameter in self._names]
        self._used.clear()
        device = next(iter(self._names)).device
        work = self._reducer.transport.all_reduce(torch.tensor(flags, dtype=torch.int32, device=device), "ddp.used")
        times = work.wait(self._reducer.timeout).tolist()
        return {name for name, used in zip(self._names.values(), times, strict=True) if not used}


def _hook(compression, bucket):  # noqa: ANN001, ANN202 - DDP compares annotations, and knows none that are text
    return compression._take(bucket)
