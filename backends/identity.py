"""One rank alone: nothing is sent, nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .delivery import deliver
from .exchange import Clock, Exchange, Flight, Source

__all__ = ["Identity"]


class Identity(Exchange):
    """Gives gradients back as they are; no collective, no residual."""

    @property
    def sent_bytes(self) -> int:
        return 0

    def start(self, sources: Sequence[Source], clock: Clock) -> Flight:
        return Flight(clock, sources, states=[source.state for source in sources])

    def finish(self, flight: Flight, timeout: float) -> None:
        """There is nobody to wait for."""

    def mean(self, flight: Flight, slot: int, out: torch.Tensor, scale: float) -> None:
        out.copy_(flight.sources[slot].grad.reshape(-1)).mul_(scale)

    def view(self, flight: Flight, slot: int, scale: float) -> torch.Tensor | None:
        source = flight.sources[slot]
        flat = source.grad.detach().reshape(-1)
        flat = flat if source.donated else flat.clone()
        return deliver(flat.mul_(scale) if scale != 1 else flat, source.grad)
