"""The exchange whose cost does not grow with the ranks: every rank averages a shard, and encodes it again for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .bucket import Bucket
from .exchange import Clock, Exchange, Flight, Source, by_slot, flat_source
from .layout import Piece, shards
from .transport import Transport

__all__ = ["TwoPhase"]


class TwoPhase(Exchange):
    """Sends 2c(W-1)/W bytes per rank; two rounds (1905.05957).

    Phase 1: all-to-all of the shards; the owner of a shard decodes and averages in fp32, and adds its own (server)
    residual. Phase 2: the owner encodes the average, and all ranks gather it. The owner uses what it sent, not its
    exact average, so that all ranks hold the same bits.
    """

    def __init__(self, bucket: Bucket, transport: Transport, digest: bytes, *, guarded: bool) -> None:
        super().__init__(bucket, transport, digest, guarded=guarded)
        self._layouts = shards(bucket.slots, transport.world_size)
        self._sizes = [layout.nbytes for layout in self._layouts]
        self._own = {piece.slot: piece for piece in self._layouts[transport.rank].pieces}
        owners = [by_slot(layout, len(bucket.slots)) for layout in self._layouts]
        #: for each slot the owners of its pieces, in the order of the pieces
        self._owners = [[rank for rank, slots in enumerate(owners) if slots[slot]] for slot in range(len(bucket.slots))]
        self._pieces = [[piece for slots in owners for piece in slots[slot]] for slot in range(len(bucket.slots))]
        self._message = torch.empty(0, dtype=torch.uint8)
        self._answer = torch.empty(0, dtype=torch.uint8)

    @property
    def phases(self) -> int:
        return 2

    @property
    def sent_bytes(self) -> int:
        own = self._sizes[self.transport.rank]
        return sum(self._sizes) - own + own * (self.transport.world_size - 1)

    def start(self, sources: Sequence[Source], clock: Clock) -> Flight:
        flight = Flight(clock, sources)
        self._message = self._zeros(self._message, sum(self._sizes), sources[0].grad.device)
        messages = list(self._message.split(self._sizes))
        for slot, source in enumerate(sources):
            targets = [messages[rank] for rank in self._owners[slot]]
            codec, meta = self.bucket.slots[slot].codec, self.bucket.slots[slot].meta
            flat = flat_source(source, meta)
            flight.states.append(self._encode(flight, flat, codec, self._pieces[slot], targets, clock))
        for message in messages:
            self._seal(flight, message)
        own = self._sizes[self.transport.rank]
        received = [own] * self.transport.world_size
        flight.work = self.transport.all_to_all(self._message, self._sizes, received, f"{self.bucket.name}.scatter")
        return flight

    def advance(self, flight: Flight, timeout: float) -> None:
        received = flight.wait(timeout).view(self.transport.world_size, -1)
        own = self._sizes[self.transport.rank]
        self._answer = self._zeros(self._answer, own, received.device)
        try:
            self._answer_to(flight, received)
        except Exception as error:  # raised when the step is settled: the other ranks wait for the second phase
            flight.error = flight.error or error
        self._seal(flight, self._answer)
        flight.work = self.transport.all_gather(self._answer, self._sizes, f"{self.bucket.name}.gather")

    def finish(self, flight: Flight, timeout: float) -> None:
        flight.result = flight.wait(timeout)
        flight.messages = flight.result.split(self._sizes)
        self._open(flight, flight.messages)

    def mean(self, flight: Flight, slot: int, out: torch.Tensor, scale: float) -> None:
        for piece, owner in zip(self._pieces[slot], self._owners[slot], strict=True):
            self._sum(flight, piece, [flight.messages[owner]], out[piece.low : piece.high], scale)

    def own_range(self, slot: int) -> slice:
        piece = self._own.get(slot)
        return slice(0, 0) if piece is None else slice(piece.low, piece.high)

    def _answer_to(self, flight: Flight, received: torch.Tensor) -> None:
        self._open(flight, list(received))
        if flight.finite and not flight.failed:
            for piece in self._layouts[self.transport.rank].pieces:
                self._average(flight, piece, received)

    def _average(self, flight: Flight, piece: Piece, received: torch.Tensor) -> None:
        """Average this rank's shard of a tensor and encode it again, with the server's residual."""
        mean = torch.empty(piece.meta.numel, device=received.device)
        self._sum(flight, piece, list(received), mean, 1 / self.transport.world_size)
        source = Source(mean, state=flight.sources[piece.slot].server, scratch=mean)
        codec = self.bucket.slots[piece.slot].codec
        clock = flight.clock.of_server(self.transport.world_size)
        flight.server[piece.slot] = self._encode(flight, source, codec, [piece], [self._answer], clock)
