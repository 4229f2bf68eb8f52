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
from ._host import ReducingOptimizer, hvd
from ._seam import Payload, Request, SleepingHandle, Ticket, install
from .session import Session, meta_of
from .transport import HorovodTransport

__all__ = ["Compression", "Options", "ReducerOptions"]


class ReducerOptions(TypedDict, total=False):
    """How gradients are exchanged.

    Attributes:
        exchange: how ranks combine: "auto", "all_reduce", "gather" or "two_phase" ("auto").
        bucket_bytes: gradients are exchanged in buckets of about this size (25 MiB).
        timeout: seconds that a collective may take before it is an error (60).
        seed: base of all pseudo-random choices (0).
    """

    exchange: str
    bucket_bytes: int
    timeout: float
    seed: int


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
        self._latest: tuple[Callable[[], ReducingOptimizer | None], Callable[[], Session | None]] = _nothing, _nothing
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

    def _launch(self, request: Request) -> Ticket | SleepingHandle:
        with self._lock:
            return (
                self._serve_call(request)
                if request.optimizer is None
                else self._serve_optimizer(request, request.optimizer)
            )

    # An optimizer's gradients.

    def _serve_optimizer(self, request: Request, optimizer: ReducingOptimizer) -> Ticket | SleepingHandle:
        session = self._optimizer_session(request, optimizer)
        names = [optimizer._parameter_names[parameter] for parameter in request.parameters]
        again = request.from_synchronize and optimizer._synchronized
        if again and session.is_reduced(names[0], request.parameters[0]):
            # step() after synchronize(): the gradient is a mean already, maybe clipped; reducing it again would
            # move the residuals a second time
            return _pass_through(request.payloads[0])
        for name, payload, parameter in zip(names, request.payloads, request.parameters, strict=True):
            session.submit(name, payload.tensor)
            session.note_reduced(name, parameter)
            payload.take = partial(session.take, name, _scale(request, session))
        return session.handle(names[0]) if request.grouped else Ticket.of(request.payloads[0])

    def _optimizer_session(self, request: Request, optimizer: ReducingOptimizer) -> Session:
        session = self._latest[1]()
        if self._latest[0]() is not optimizer or session is None or not session.transport.current:
            session = self._of_optimizers.get(optimizer)
            if session is None or not session.transport.current:
                session = self._of_optimizers[optimizer] = self._open_optimizer(request, optimizer)
            self._latest = ref(optimizer), ref(session)
        if session.in_step and session.handles is not optimizer._handles:
            session.abandon()  # load_state_dict() has dropped the open handles
        session.handles = optimizer._handles
        return session

    def _open_optimizer(self, request: Request, optimizer: ReducingOptimizer) -> Session:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p in optimizer._requires_update]
        metas = {p: meta_of(optimizer._parameter_names[p], p) for p in reversed(parameters)}
        session = self._open(request, "optimizer", list(metas.values()), self.compressor)
        if optimizer._groups is not None:
            groups = {optimizer._p_to_group[p]: None for p in metas}
            session.expect(list(metas.values()), [[metas[p].name for p in group] for group in groups])
        return session

    # Calls such as hvd.allreduce.

    def _serve_call(self, request: Request) -> Ticket | SleepingHandle:
        names = (
            [request.name or "unnamed"]
            if not request.grouped
            else [f"{request.name or 'unnamed'}.{index}" for index in range(len(request.payloads))]
        )
        metas = [meta_of(name, payload.tensor) for name, payload in zip(names, request.payloads, strict=True)]
        session = self._call_session(request, metas)
        for name, payload in zip(names, request.payloads, strict=True):
            session.submit(name, payload.tensor)
            payload.take = partial(session.take, name, _scale(request, session))
        return session.handle(names[0])

    def _call_session(self, request: Request, metas: list[TensorMeta]) -> Session:
        key = f"{request.process_set.process_set_id} {request.name is None} {metas}"
        session = self._of_calls.get(key)
        if session is None or not session.transport.current:
            compressor = self.compressor if request.name is not None else self._memoryless()
            session = self._of_calls[key] = self._open(request, f"call.{request.name or 'unnamed'}", metas, compressor)
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

    def _open(self, request: Request, kind: str, metas: Sequence[TensorMeta], compressor: Compressor) -> Session:
        def make_reducer(transport: HorovodTransport, name: str) -> GradientReducer:
            return GradientReducer(compressor, transport, name=name, **self._options)

        kind = f"gradwire.{request.process_set.process_set_id}.{kind}"
        order = [meta.name for meta in metas]
        return Session(make_reducer, request.process_set, kind, order, donate=request.optimizer is not None)


def _scale(request: Request, session: Session) -> float:
    """What makes the reducer's mean the result that Horovod's caller asked for."""
    return request.scale * (session.transport.world_size if request.op == "sum" else 1)


def _pass_through(payload: Payload) -> Ticket:
    payload.take = lambda: payload.tensor
    return Ticket.of(payload)


def _nothing() -> None:
    return None


def _remade(compressor: Compressor, options: ReducerOptions) -> Compression:
    return Compression(compressor, **options)
