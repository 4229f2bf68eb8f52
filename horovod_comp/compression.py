"""The object for Horovod's `compression=`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict
from weakref import WeakKeyDictionary, ref

import torch
from typing_extensions import Unpack

from ..backends import GradientReducer, LocalTransport, Statistics
from ..backends.announce import announce
from ..backends.statistics import merge
from ..compressors import Compressor, TensorMeta, with_defaults, without_memory
from ..compressors.errors import UsageError
from ._handle import SleepingHandle
from ._host import ReducingOptimizer, hvd
from ._seam import Operation, Payload, Request, install
from .session import Session, meta_of
from .transport import HorovodTransport

__all__ = ["Compression", "Options", "ReducerOptions"]


class ReducerOptions(TypedDict, total=False):
    """How gradients are exchanged.

    Attributes:
        exchange: how ranks combine: "auto", "all_reduce", "gather", "two_phase", "sparse" or "hierarchical" ("auto").
        bucket_bytes: gradients are exchanged in buckets of about this size (25 MiB).
        timeout: seconds that a collective may take before it is an error (60).
        seed: base of all pseudo-random choices (0).
        overlap: encode in a thread of its own while backward goes on (True); `groups=` and single calls do without.
    """

    exchange: str
    bucket_bytes: int
    timeout: float
    seed: int
    overlap: bool


class Options(ReducerOptions, total=False):
    """What every object for `compression=` takes besides its codec's own options; see `ReducerOptions` too.

    Attributes:
        min_numel: tensors with fewer elements travel dense (1024).
    """

    min_numel: int


class Compression:
    """A compressor for an unmodified Horovod: `hvd.DistributedOptimizer(opt, compression=Compression(...))`.

    One object may serve several optimizers and calls: each has residuals of its own. `hvd.allreduce` and
    `hvd.grouped_allreduce` take it as well; error feedback there goes by the `name` of the call.

    Args:
        compressor: a codec of `gradwire`, bare or wrapped; biased ones get error feedback.
        **options: see `Options`.

    Raises:
        ConfigError: an option is out of its range.
    """

    def __init__(self, compressor: Compressor, *, min_numel: int = 1024, **options: Unpack[ReducerOptions]) -> None:
        self.compressor = with_defaults(compressor, min_numel)
        self._options = options
        GradientReducer(self.compressor, LocalTransport.group(1)[0], **options)  # refuses what is out of range
        install()
        self._lock = threading.RLock()
        self._of_optimizers: WeakKeyDictionary[ReducingOptimizer, Session] = WeakKeyDictionary()
        self._of_calls: dict[str, Session] = {}
        # looking into a weak dictionary for every gradient is slow
        self._latest: tuple[Callable[[], ReducingOptimizer | None], Session | None] = _nothing, None
        self._told_unnamed = False
        if hvd.is_initialized() and hvd.size() == 1:
            announce("one process: Horovod exchanges nothing, so nothing is compressed")

    def __repr__(self) -> str:
        return f"Compression({self.compressor!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """A copy has the same options and no residuals."""
        return _remade, (self.compressor, self._options)

    @property
    def statistics(self) -> Statistics:
        """What was sent and how long it took, for all optimizers and calls together."""
        with self._lock:
            return merge([session.statistics for session in self._sessions()])

    # What Horovod calls.

    def compress(self, tensor: torch.Tensor | None = None) -> tuple[Payload | torch.Tensor, None]:
        """Wrap a gradient; it is encoded when Horovod submits it, for only then its name is known.

        Whole numbers go Horovod's own way: a count must stay exact.
        """
        if tensor is None:
            raise UsageError("compression= got a class; it takes an instance, such as TopK(ratio=0.01)")
        if not tensor.is_floating_point():
            return tensor, None
        return Payload(self, tensor), None

    def decompress(self, payload: Payload | torch.Tensor, ctx: None) -> torch.Tensor:
        """The reduced gradient. Tensors that never were compressed (sparse ones, whole numbers) pass through."""
        if isinstance(payload, torch.Tensor):
            return payload
        if payload.take is None:
            raise UsageError("decompress() got a payload that was never submitted to Horovod")
        return payload.take()

    def _submit(
        self,
        payload: Payload,
        optimizer: ReducingOptimizer,
        parameter: torch.nn.Parameter,
        name: str,
        op: Operation,
        scale: float,
    ) -> None:
        with self._lock:
            session = self._optimizer_session(optimizer)
            session.submit(name, payload.tensor, parameter.grad)
            payload.take = partial(session.take, name, _scale(op, scale, session))

    def _is_reduced(self, optimizer: ReducingOptimizer, parameter: torch.nn.Parameter, name: str) -> bool:
        with self._lock:
            return self._optimizer_session(optimizer).is_reduced(name, parameter.grad)

    def _launch(self, request: Request) -> SleepingHandle:
        with self._lock:
            if request.optimizer is None:
                return self._serve_call(request)
            return self._serve_group(request, request.optimizer)

    # An optimizer's gradients.

    def _serve_group(self, request: Request, optimizer: ReducingOptimizer) -> SleepingHandle:
        names = [optimizer._parameter_names[parameter] for parameter in request.parameters]
        for name, payload, parameter in zip(names, request.payloads, request.parameters, strict=True):
            self._submit(payload, optimizer, parameter, name, request.op, request.scale)
        return self._optimizer_session(optimizer).handle(names[0])

    def _optimizer_session(self, optimizer: ReducingOptimizer) -> Session:
        latest, session = self._latest
        if session is None or latest() is not optimizer or not session.transport.current:
            session = self._of_optimizers.get(optimizer)
            if session is None or not session.transport.current:
                session = self._of_optimizers[optimizer] = self._open_optimizer(optimizer)
            self._latest = ref(optimizer, self._forget), session
        if session.in_step and session.handles is not optimizer._handles:
            session.abandon()  # load_state_dict() has dropped the open handles
        session.handles = optimizer._handles
        return session

    def _forget(self, optimizer: ref[ReducingOptimizer]) -> None:
        if self._latest[0] is optimizer:
            self._latest = _nothing, None

    def _open_optimizer(self, optimizer: ReducingOptimizer) -> Session:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p in optimizer._requires_update]
        metas = {p: meta_of(optimizer._parameter_names[p], p) for p in reversed(parameters)}
        # with groups Horovod waits for the first phase itself, which must not be over before
        overlap = optimizer._groups is None and self._options.get("overlap", True)
        session = self._open(
            optimizer.process_set, "optimizer", list(metas.values()), self.compressor, donate=True, overlap=overlap
        )
        if optimizer._groups is not None:
            groups = {optimizer._p_to_group[p]: None for p in metas}
            session.expect(list(metas.values()), [[metas[p].name for p in group] for group in groups])
        return session

    # Calls such as hvd.allreduce.

    def _serve_call(self, request: Request) -> SleepingHandle:
        names = (
            [request.name or "unnamed"]
            if not request.grouped
            else [f"{request.name or 'unnamed'}.{index}" for index in range(len(request.payloads))]
        )
        metas = [meta_of(name, payload.tensor) for name, payload in zip(names, request.payloads, strict=True)]
        session = self._call_session(request, metas)
        for name, payload in zip(names, request.payloads, strict=True):
            session.submit(name, payload.tensor, payload.tensor)
            payload.take = partial(session.take, name, _scale(request.op, request.scale, session))
        return session.handle(names[0])

    def _call_session(self, request: Request, metas: list[TensorMeta]) -> Session:
        key = f"{request.process_set.process_set_id} {request.name is None} {metas}"
        session = self._of_calls.get(key)
        if session is None or not session.transport.current:
            compressor = self.compressor if request.name is not None else self._memoryless()
            kind = f"call.{request.name or 'unnamed'}"
            session = self._open(request.process_set, kind, metas, compressor, donate=False)
            self._of_calls[key] = session
            session.expect(metas, [[meta.name for meta in metas]])
        return session

    def _memoryless(self) -> Compressor:
        if self.compressor.elementwise_state and not self._told_unnamed:
            self._told_unnamed = True
            announce(
                "hvd.allreduce without name=: a residual has no name to be kept by, so error feedback is off for it"
            )
        return without_memory(self.compressor)

    # Both.

    def _sessions(self) -> list[Session]:
        return [*self._of_optimizers.values(), *self._of_calls.values()]

    def _open(
        self,
        process_set: hvd.ProcessSet,
        kind: str,
        metas: Sequence[TensorMeta],
        compressor: Compressor,
        *,
        donate: bool,
        overlap: bool = False,
    ) -> Session:
        options: ReducerOptions = {**self._options, "overlap": overlap}

        def make_reducer(transport: HorovodTransport, name: str) -> GradientReducer:
            return GradientReducer(compressor, transport, name=name, **options)

        kind = f"gradwire.{process_set.process_set_id}.{kind}"
        return Session(make_reducer, process_set, kind, [meta.name for meta in metas], donate=donate)


def _scale(op: Operation, scale: float, session: Session) -> float:
    """What makes the reducer's mean the result that Horovod's caller asked for."""
    return scale * (session.transport.world_size if op == "sum" else 1)


def _nothing() -> None:
    return None


def _remade(compressor: Compressor, options: ReducerOptions) -> Compression:
    return Compression(compressor, **options)
