"""The exchange that gives each rank its own tensors only: every rank sends each owner what it has for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .bucket import Bucket
from .exchange import Clock, Exchange, Flight, Source
from .layout import owned
from .transport import Transport

__all__ = ["ReduceScatter"]


class ReduceScatter(Exchange):
    """Sends c(W-1)/W bytes per rank where all own as much; one round, with no second encoding.

    An owner of nothing gets a header all the same: whether all inputs were finite is everybody's business.

    Args:
        owners: by slot, the rank that gets the mean.
    """

    def __init__(
        self, bucket: Bucket, transport: Transport, digest: bytes, *, guarded: bool, owners: Sequence[int]
    ) -> None:
        super().__init__(bucket, transport, digest, guarded=guarded)
        layouts = owned(bucket.slots, owners, transport.world_size)
        self._owners = owners
        self._sizes = [layout.nbytes for layout in layouts]
        self._pieces = {piece.slot: piece for layout in layouts for piece in layout.pieces}
        self._message = torch.empty(0, dtype=torch.uint8)

    @property
    def sent_bytes(self) -> int:
        return sum(self._sizes) - self._sizes[self.transport.rank]

    def start(self, sources: Sequence[Source], clock: Clock) -> Flight:
        flight = Flight(clock, sources)
        self._message = self._zeros(self._message, sum(self._sizes), sources[0].grad.device)
        messages = self._message.split(self._sizes)
        for slot, source in enumerate(sources):
            codec, target = self.bucket.slots[slot].codec, messages[self._owners[slot]]
            flight.states.append(self._encode(flight, source, codec, [self._pieces[slot]], [target], clock))
        for message in messages:
            self._seal(flight, message)
        received = [self._sizes[self.transport.rank]] * self.transport.world_size
        flight.work = self.transport.all_to_all(self._message, self._sizes, received, self.bucket.name)
        return flight

    def finish(self, flight: Flight, timeout: float) -> None:
        flight.result = flight.wait(timeout).view(self.transport.world_size, -1)
        self._open(flight, list(flight.result))

    def mean(self, flight: Flight, slot: int, out: torch.Tensor, scale: float) -> None:
        """As for every exchange, but for the slots that this rank owns only."""
        self._sum(flight, self._pieces[slot], list(flight.result), out, scale / self.transport.world_size)
