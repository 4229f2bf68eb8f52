"""The exchange for any payload: every rank sends its message to every other rank, and decodes them all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .bucket import Bucket
from .exchange import Clock, Exchange, Flight, Source, by_slot
from .layout import whole
from .transport import Transport

__all__ = ["Gather"]


class Gather(Exchange):
    """Sends c(W-1) bytes per rank; one round."""

    def __init__(self, bucket: Bucket, transport: Transport, digest: bytes, *, guarded: bool) -> None:
        super().__init__(bucket, transport, digest, guarded=guarded)
        self._layout = whole(bucket.slots)
        self._pieces = by_slot(self._layout, len(bucket.slots))
        self._message = torch.empty(0, dtype=torch.uint8)

    @property
    def sent_bytes(self) -> int:
        return self._layout.nbytes * (self.transport.world_size - 1)

    def start(self, sources: Sequence[Source], clock: Clock) -> Flight:
        flight = Flight(clock, sources)
        message = self._message = self._zeros(self._message, self._layout.nbytes, sources[0].grad.device)
        for slot, source in enumerate(sources):
            codec = self.bucket.slots[slot].codec
            flight.states.append(self._encode(flight, source, codec, self._pieces[slot], [message], clock))
        self._seal(flight, message)
        sizes = [self._layout.nbytes] * self.transport.world_size
        flight.work = self.transport.all_gather(message, sizes, self.bucket.name)
        return flight

    def finish(self, flight: Flight, timeout: float) -> None:
        flight.result = flight.wait(timeout).view(self.transport.world_size, -1)
        self._open(flight, list(flight.result))

    def mean(self, flight: Flight, slot: int, out: torch.Tensor, scale: float) -> None:
        for piece in self._pieces[slot]:
            self._sum(flight, piece, list(flight.result), out, scale / self.transport.world_size)
