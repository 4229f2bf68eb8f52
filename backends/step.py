"""One step of a reducer: gradients arrive, buckets fly, all ranks settle, means are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch

from ..compressors import State
from ..compressors.errors import PayloadError, PeerError
from .delivery import deliver, output_for, scratch_for
from .exchange import Clock, Exchange, Flight, Source
from .registry import Place
from .transport import Work

__all__ = ["Step"]


class Step:
    """Lives from the first gradient of a step until its last mean is taken.

    Args:
        exchanges: one per bucket.
        clock: step number, rank and seed.
        ordered: start buckets in their order only, because the transport pairs collectives by order.
    """

    def __init__(self, exchanges: Sequence[Exchange], clock: Clock, *, ordered: bool) -> None:
        self._exchanges = exchanges
        self._clock = clock
        self._ordered = ordered
        self._sources: list[dict[int, Source]] = [{} for _ in exchanges]
        self._sizes = [len(exchange.bucket.slots) for exchange in exchanges]
        self._flights: dict[int, Flight] = {}
        self._seconds = 0.0
        self.applied = False

    # Gradients arrive.

    def has(self, place: Place) -> bool:
        return place.slot in self._sources[place.bucket]

    def put(self, place: Place, source: Source) -> bool:
        """Take a gradient; True if its bucket is full now."""
        bucket, slot = place
        sources = self._sources[bucket]
        sources[slot] = source
        return len(sources) == self._sizes[bucket]

    def fill(self, missing: Callable[[Place], Source]) -> None:
        """Put something in every place that is still empty."""
        for index, sources in enumerate(self._sources):
            for number in range(self._sizes[index]):
                if number not in sources:
                    self.put(Place(index, number), missing(Place(index, number)))

    def launch(self, buckets: Iterable[int] | None = None) -> None:
        """Start these buckets (None: all) as far as they are full, and those behind them that they held up."""
        if self._ordered:
            while len(self._flights) < len(self._exchanges) and self._start(len(self._flights)):
                pass
            return
        for index in range(len(self._exchanges)) if buckets is None else buckets:
            self._start(index)

    def _start(self, index: int) -> bool:
        sources = self._sources[index]
        if index in self._flights or len(sources) < self._sizes[index]:
            return False
        with self._timing():
            ordered = [sources[number] for number in range(len(sources))]
            for source in () if self._exchanges[index].keeps_runs else ordered:
                if source.keeps:
                    source.scratch = scratch_for(source.grad, donated=source.donated)
            self._flights[index] = self._exchanges[index].start(ordered, self._clock)
        return True

    # All ranks settle.

    def settle(self, timeout: float) -> None:
        """Start and finish all exchanges, in bucket order; `applied` tells whether the step counts.

        Raises:
            PeerError: a codec raised on another rank. If it raised here, its own exception is raised.
            PayloadError: another rank sent what does not belong to this step.
        """
        self.launch()
        pairs = [(exchange, self._flights[index]) for index, exchange in enumerate(self._exchanges)]
        with self._timing():
            for phase in range(1, max((exchange.phases for exchange in self._exchanges), default=1)):
                for exchange, flight in pairs:
                    if phase < exchange.phases:
                        exchange.advance(flight, timeout)
            for exchange, flight in pairs:
                _finish(exchange, flight, timeout)
        self._raise_failures()
        self.applied = all(flight.finite for _, flight in pairs)

    def _raise_failures(self) -> None:
        flights = self._flights.values()
        own = next((flight.error for flight in flights if flight.error is not None), None)
        if own is not None:
            raise own
        failed = sorted({rank for flight in flights for rank in flight.failed})
        if failed:
            raise PeerError(f"compression failed on rank {failed[0]}; its own error says why. No residual was changed.")

    # Means are taken.

    def mean(self, place: Place, scale: float) -> torch.Tensor:
        """The mean of one tensor; its storage is the caller's from now on."""
        bucket, slot = place
        exchange, flight = self._exchanges[bucket], self._flights[bucket]
        if not self.applied:
            return torch.full_like(flight.sources[slot].grad, float("nan"))
        begun = perf_counter()
        mean = exchange.view(flight, slot, scale)
        if mean is None:
            source = flight.sources[slot]
            flat = output_for(source, flight.states[slot])
            exchange.mean(flight, slot, flat, scale)
            mean = deliver(flat, source.grad)
        self._seconds += perf_counter() - begun
        return mean

    def work(self, place: Place) -> Work | None:
        """The collective that carries a tensor's bucket right now."""
        flight = self._flights.get(place.bucket)
        return None if flight is None else flight.work

    def states(self, place: Place) -> tuple[State, State]:
        """A tensor's state after the step, and that of this rank's shard of it."""
        flight = self._flights[place.bucket]
        return flight.states[place.slot], flight.server.get(place.slot, {})

    @contextmanager
    def _timing(self) -> Iterator[None]:
        begun = perf_counter()
        try:
            yield
        finally:
            self._seconds += perf_counter() - begun

    def seconds(self) -> tuple[float, float]:
        """Time spent in codecs so far, and time spent waiting."""
        waited = sum(flight.wait_seconds for flight in self._flights.values())
        return self._seconds - waited, waited


def _finish(exchange: Exchange, flight: Flight, timeout: float) -> None:
    """Note what is wrong with a message, so that the remaining collectives end before it is raised."""
    try:
        exchange.finish(flight, timeout)
    except PayloadError as error:
        flight.error = flight.error or error
