"""One rank alone: nothing is sent, nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..compressors import State
from ..compressors.memory import RESIDUAL
from .delivery import deliver
from .exchange import Clock, Exchange, Flight, Source

__all__ = ["Identity"]


class Identity(Exchange):
    """Gives gradients back as they are; no collective, no residual.

    A residual that is there nevertheless, because it was loaded after a run with more ranks, is given with the next
    gradient that is finite.
    """

    @property
    def sent_bytes(self) -> int:
        return 0

    def start(self, sources: Sequence[Source], clock: Clock) -> Flight:
        owing = [source for source in sources if RESIDUAL in source.state]
        finite = all(bool(source.grad.isfinite().all()) for source in owing)
        return Flight(clock, sources, states=[_without_residual(source.state) for source in sources], finite=finite)

    def finish(self, flight: Flight, timeout: float) -> None:
        """There is nobody to wait for."""

    def mean(self, flight: Flight, slot: int, out: torch.Tensor, scale: float) -> None:
        source = flight.sources[slot]
        if RESIDUAL in source.state:
            torch.add(source.grad.reshape(-1), source.state[RESIDUAL], out=out)  # `out` may be the residual itself
        else:
            out.copy_(source.grad.reshape(-1))
        out.mul_(scale)

    def view(self, flight: Flight, slot: int, scale: float) -> torch.Tensor | None:
        source = flight.sources[slot]
        if RESIDUAL in source.state:
            return None
        flat = source.grad.detach().reshape(-1)
        flat = flat if source.donated else flat.clone()
        return deliver(flat.mul_(scale) if scale != 1 else flat, source.grad)


def _without_residual(state: State) -> State:
    return {key: value for key, value in state.items() if key != RESIDUAL}
