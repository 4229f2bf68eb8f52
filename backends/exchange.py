"""How the ranks of a bucket combine; the only code that communicates gradients.

An exchange is built once per bucket. In every step it makes a `Flight`, which goes through `start`, `advance`,
`finish`, and then gives means, slot by slot. Every collective is named after the bucket and its phase, and decoding
goes in rank order, so that all ranks hold the same bits. No collective depends on one rank's data: a missing
gradient is encoded as zeros, a non-finite one as a flag.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch

from ..compressors import Compressor, Context, State, TensorMeta
from ..compressors.base import as_vector
from ..compressors.errors import UsageError
from ..compressors.wire import FAILED, NON_FINITE, Expected, read_header, write_header
from .bucket import Bucket
from .layout import Layout, Piece
from .transport import Transport, Work

__all__ = ["Clock", "Exchange", "Flight", "Source"]


@dataclass(frozen=True)
class Clock:
    """When and where: goes into every codec's context."""

    step: int
    rank: int
    seed: int

    def of_server(self, world_size: int) -> Clock:
        """For the second encoding of a shard, whose random numbers must be independent of the first one's."""
        return replace(self, rank=self.rank + world_size)

    def context(self, meta: TensorMeta) -> Context:
        return Context(meta=meta, step=self.step, rank=self.rank, seed=self.seed)


@dataclass(slots=True)
class Source:
    """A slot's input to a step.

    Attributes:
        grad: the gradient.
        donated: whether the gradient's storage may be overwritten and kept.
        state: this tensor's state before the step.
        server: the state of this rank's shard of the tensor before the step (two-phase only).
        keeps: the codec keeps a residual, and needs storage for the new one.
        scratch: that storage, flat; may be the gradient's own. Set when the exchange starts: until then others may
            look at the gradient.
    """

    grad: torch.Tensor
    donated: bool = False
    state: State = field(default_factory=dict)
    server: State = field(default_factory=dict)
    keeps: bool = False
    scratch: torch.Tensor | None = None


@dataclass
class Flight:
    """One bucket on its way in one step.

    Attributes:
        sources: what went in.
        states: the slots' states after the step; dropping them undoes it.
        server: the states of this rank's shards after the step (two-phase only), by slot.
        finite: every rank's input was finite; known after `finish`.
        failed: ranks whose codec raised; known after `finish`.
        error: what went wrong on this rank: its codec raised, or a message is not what it should be.
        wait_seconds: how long it has waited for the others.
        phase: how often it has advanced, counting the one under way.
        messages: parts of the result that have headers, where there is a second encoding.
        means: by slot, where gradients travel as they are.
        scale: what these were multiplied with; None: nothing yet.
        inner: what carries this one, where little tensors travel as one.
        flats: means of these together, by the number of their bundle, and what they were multiplied with.
    """

    clock: Clock
    sources: Sequence[Source]
    states: list[State] = field(default_factory=list)
    server: dict[int, State] = field(default_factory=dict)
    finite: bool = True
    failed: set[int] = field(default_factory=set)
    error: Exception | None = None
    wait_seconds: float = 0.0
    scale: float | None = None
    phase: int = 0
    inner: Flight | None = None
    flats: dict[int, tuple[float, torch.Tensor]] = field(default_factory=dict)
    messages: Sequence[torch.Tensor] = ()
    means: Sequence[torch.Tensor] = ()
    work: Work | None = None
    result: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))

    def wait(self, timeout: float) -> torch.Tensor:
        """The result of the collective under way."""
        if self.work is None:
            raise UsageError("this bucket's exchange was not started")
        begun = perf_counter()
        try:
            return self.work.wait(timeout)
        finally:
            self.wait_seconds += perf_counter() - begun


class Exchange(ABC):
    """Combines one bucket over the ranks.

    Args:
        bucket: the tensors.
        transport: the ranks.
        digest: of what the ranks have agreed on; goes into every message's header.
        guarded: whether finiteness must be known, because some tensor of the step has a codec: it may keep a state,
            or fail on one rank, which shows as NaN.
    """

    @property
    def phases(self) -> int:
        """Collectives of a step, one after the other."""
        return 1

    @property
    def keeps_runs(self) -> bool:
        """Whether states are kept for a run of each tensor only, `kept_range`, in storage that the exchange finds."""
        return False

    def __init__(self, bucket: Bucket, transport: Transport, digest: bytes, *, guarded: bool) -> None:
        self.bucket = bucket
        self.transport = transport
        self.guarded = guarded
        self._expected = Expected(
            codec_id=next((slot.codec.codec_id for slot in bucket.slots if slot.reason is None), 0),
            count=len(bucket.slots),
            digest=int.from_bytes(digest[:4], "little"),
        )

    @property
    @abstractmethod
    def sent_bytes(self) -> int:
        """What this rank sends in every step, headers included; an all-reduce counts as a ring."""

    @abstractmethod
    def start(self, sources: Sequence[Source], clock: Clock) -> Flight:
        """Encode and launch."""

    def advance(self, flight: Flight, timeout: float) -> None:  # noqa: B027 - most exchanges have one phase only
        """Launch the next phase. Called once for each but the first, in bucket order, after all have come so far."""

    @abstractmethod
    def finish(self, flight: Flight, timeout: float) -> None:
        """Wait for the result; `flight.finite` and `flight.failed` are known afterwards, equal on all ranks."""

    @abstractmethod
    def mean(self, flight: Flight, slot: int, out: torch.Tensor, scale: float) -> None:
        """Write the mean over the ranks, times `scale`, to the flat `out`."""

    def view(self, flight: Flight, slot: int, scale: float) -> torch.Tensor | None:
        """The mean, in the gradient's shape, where the result holds it already; else None."""
        return None

    def own_range(self, slot: int) -> slice:
        """The elements of a tensor whose average this rank encodes again (two-phase only)."""
        return slice(0, 0)

    def kept_range(self, slot: int) -> slice:
        """The elements of a tensor for which this rank keeps a state."""
        return slice(0, self.bucket.slots[slot].meta.numel)

    @property
    def holders(self) -> int:
        """How many ranks keep a state for the same elements; all together owe the mean of their residuals."""
        return self.transport.world_size

    # The parts shared by exchanges of messages.

    def _encode(
        self,
        flight: Flight,
        source: Source,
        codec: Compressor,
        pieces: Sequence[Piece],
        messages: Sequence[torch.Tensor],
        clock: Clock,
        first: int = 0,
    ) -> State:
        """Encode a tensor's pieces, each into its message; the returned state is that of the whole tensor.

        What is in `source` may be a run of the tensor, from the element `first` on; the state is of that run then.
        """
        pairs = zip(pieces, messages, strict=True)
        try:
            results = [self._compress(flight, source, codec, *pair, clock, first) for pair in pairs]
            # of a piece that is not finite there is no new state; the step will not count
            return _join(codec, source, results) if flight.finite else source.state
        except Exception as error:
            flight.error = error
            return source.state

    def _compress(
        self,
        flight: Flight,
        source: Source,
        codec: Compressor,
        piece: Piece,
        message: torch.Tensor,
        clock: Clock,
        first: int,
    ) -> State:
        grad, state, scratch = source.grad, source.state, source.scratch
        if grad.numel() != piece.meta.numel:
            part = slice(piece.low - first, piece.high - first)
            grad = grad[part]
            state = {key: value[part] if key in codec.elementwise_state else value for key, value in state.items()}
            scratch = None if scratch is None else scratch[part]
        ctx = clock.context(piece.meta)
        done = codec.compress(grad, state, ctx, out=piece.payload(message), scratch=scratch)
        flight.finite &= bool(done.finite)  # waits for a GPU: the message's header says it
        return done.state

    def _sum(
        self, flight: Flight, piece: Piece, messages: Sequence[torch.Tensor], out: torch.Tensor, weight: float
    ) -> None:
        """Write what the messages say of a piece, added up in their order, times `weight`."""
        codec, ctx = self.bucket.slots[piece.slot].codec, flight.clock.context(piece.meta)
        codec.decompress(piece.payload(messages[0]), ctx, out, weight)
        for message in messages[1:]:
            codec.decompress_add(piece.payload(message), ctx, out, weight)

    def _zeros(self, message: torch.Tensor, nbytes: int, device: torch.device) -> torch.Tensor:
        """The bucket's message, made once: padding between payloads stays zero."""
        if message.numel() == nbytes and message.device == device:
            return message
        return torch.zeros(nbytes, dtype=torch.uint8, device=device)

    def _seal(self, flight: Flight, message: torch.Tensor) -> None:
        flags = (0 if flight.finite else NON_FINITE) | (0 if flight.error is None else FAILED)
        write_header(message, self._expected, flags=flags, step=flight.clock.step)

    def _open(self, flight: Flight, messages: Sequence[torch.Tensor], ranks: Sequence[int] | None = None) -> None:
        """Check every sender's header and note what its flags say; None: all ranks have sent."""
        for rank, message in zip(ranks or range(len(messages)), messages, strict=True):
            flags = read_header(message, self._expected, step=flight.clock.step, rank=rank)
            flight.finite &= not flags & NON_FINITE
            if flags & FAILED:
                flight.failed.add(rank)


def by_slot(layout: Layout, count: int) -> list[list[Piece]]:
    """The layout's pieces by slot."""
    slots: list[list[Piece]] = [[] for _ in range(count)]
    for piece in layout.pieces:
        slots[piece.slot].append(piece)
    return slots


def flat_source(source: Source, meta: TensorMeta) -> Source:
    """The same source with its gradient as a vector, which can be cut."""
    return replace(source, grad=as_vector(source.grad, meta))


def _join(codec: Compressor, source: Source, states: list[State]) -> State:
    """One state from the states of a tensor's pieces.

    Elementwise entries follow each other, counters add up, others are the last piece's.
    """
    if len(states) == 1:
        return states[0]
    joined = dict(states[-1]) if states else dict(source.state)
    for key in codec.counters & joined.keys():
        before = source.state.get(key, torch.zeros_like(joined[key]))
        joined[key] = before + sum(state[key] - before for state in states)
    for key in codec.elementwise_state & joined.keys():
        parts = [state[key] for state in states]
        adjacent = source.scratch is not None and parts[0].data_ptr() == source.scratch.data_ptr()
        joined[key] = source.scratch if adjacent and source.scratch is not None else torch.cat(parts)
    return joined
