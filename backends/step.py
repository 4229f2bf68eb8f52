"""One step of a reducer: gradients arrive, buckets fly, all ranks settle, means are taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch

from ..compressors import State
from ..compressors.errors import PayloadError, PeerError
from .delivery import deliver, output_for, scratch_for
from .exchange import Clock, Exchange, Flight, Source
from .registry import Place
from .schedule import Action, by_phase, in_flight
from .statistics import Times
from .transport import Work

__all__ = ["Step"]

#: seconds between two looks at what is under way: the first pause and the longest
PAUSES = (50e-6, 1e-3)


class Step:
    """Lives from the first gradient of a step until its last mean is taken.

    Whoever has the turn takes the next action: a bucket's start, or the launch of a later phase. This may be the one
    who brings gradients, or a thread of its own that follows; at the end it is the one who settles.

    Args:
        exchanges: one per bucket.
        clock: step number, rank and seed.
        ordered: take actions in their order only, because the transport pairs collectives by order.
        overlap: advance buckets before all have started.
    """

    def __init__(self, exchanges: Sequence[Exchange], clock: Clock, *, ordered: bool, overlap: bool = False) -> None:
        self._exchanges = exchanges
        self._clock = clock
        self._ordered = ordered
        self._sources: list[dict[int, Source]] = [{} for _ in exchanges]
        self._sizes = [len(exchange.bucket.slots) for exchange in exchanges]
        self._flights: dict[int, Flight] = {}
        self._actions = (in_flight if overlap else by_phase)([exchange.phases for exchange in exchanges])
        self.overlap = overlap
        self._turn = threading.RLock()
        self._news = threading.Event()
        #: why the follower gave up
        self._failure: Exception | None = None
        self._settling_since = float("inf")
        self._times = Times(begun=perf_counter())
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

    @property
    def complete(self) -> bool:
        """Whether all gradients have come."""
        return all(len(sources) == size for sources, size in zip(self._sources, self._sizes, strict=True))

    # Buckets fly.

    def launch(self) -> None:
        """Take every action that need not wait for gradients, for other ranks or for the network."""
        with self._turn:
            while self._failure is None and self._take_ready():
                pass

    def notify(self) -> None:
        """Tell the follower that a bucket is full."""
        self._news.set()

    def follow(self) -> None:
        """Take actions as soon as they are ready, until someone settles the step. Runs in a thread of its own."""
        pause, longest = PAUSES
        while self._follows():
            if self._try_ready():
                pause = PAUSES[0]
            else:
                self._news.wait(pause if self._has_to_look else None)
                pause = min(2 * pause, longest)

    def stop(self) -> None:
        """Let the follower go: whoever settles the step goes on alone, or nobody does."""
        self._settling_since = min(self._settling_since, perf_counter())
        self._news.set()

    def _follows(self) -> bool:
        # news come after what they are about: those that are missed here were about something that is seen below
        self._news.clear()
        return bool(self._actions) and self._failure is None and not self._is_settling

    @property
    def _is_settling(self) -> bool:
        return self._settling_since < float("inf")

    @property
    def _has_to_look(self) -> bool:
        """Whether the network has what comes next, of which nobody tells."""
        return any(action.phase and action.bucket in self._flights for action in self._candidates)

    @property
    def _candidates(self) -> Sequence[Action]:
        """What may come next; where ranks go by names, any of all."""
        return self._actions[:1] if self._ordered else self._actions

    def _try_ready(self) -> bool:
        with self._turn:
            begun = perf_counter()
            try:
                taken = not self._is_settling and self._take_ready()
            except Exception as error:  # raised where the step is settled
                self._failure = error
                return True
            self._times.overlapped += max(0.0, min(perf_counter(), self._settling_since) - begun) if taken else 0.0
            return taken

    def _take_ready(self) -> bool:
        for action in self._candidates:
            if self._is_ready(action):
                self._take(action, timeout=0.0)
                return True
        return False

    def _is_ready(self, action: Action) -> bool:
        flight = self._flights.get(action.bucket)
        if action.phase == 0:
            return len(self._sources[action.bucket]) == self._sizes[action.bucket]
        return (
            flight is not None and flight.phase == action.phase - 1 and flight.work is not None and flight.work.done()
        )

    def _take(self, action: Action, timeout: float) -> None:
        with self._timing():
            if action.phase == 0:
                self._start(action.bucket)
            else:
                flight = self._flights[action.bucket]
                flight.phase = action.phase
                self._exchanges[action.bucket].advance(flight, timeout)
        self._actions.remove(action)

    def _start(self, index: int) -> None:
        sources = [self._sources[index][number] for number in range(self._sizes[index])]
        for source in () if self._exchanges[index].keeps_runs else sources:
            if source.keeps:
                source.scratch = scratch_for(source.grad, donated=source.donated)
        self._flights[index] = self._exchanges[index].start(sources, self._clock)

    # All ranks settle.

    def settle(self, timeout: float) -> None:
        """Start and finish all exchanges; `applied` tells whether the step counts.

        Raises:
            PeerError: a codec raised on another rank. If it raised here, its own exception is raised.
            PayloadError: another rank sent what does not belong to this step.
        """
        self.stop()
        with self._turn:
            self._finish_all(timeout)
        self._raise_failures()
        self.applied = all(flight.finite for flight in self._flights.values())

    def _finish_all(self, timeout: float) -> None:
        if self._failure is not None:
            raise self._failure
        while self._actions:
            self._take(self._actions[0], timeout)
        with self._timing():
            for index, exchange in enumerate(self._exchanges):
                _finish(exchange, self._flights[index], timeout)

    def _raise_failures(self) -> None:
        flights = self._flights.values()
        own = next((flight.error for flight in flights if flight.error is not None), None)
        if own is not None:
            raise own
        failed = sorted({rank for flight in flights for rank in flight.failed})
        if failed:
            raise PeerError(f"compression failed on rank {failed[0]}; its own error says why. No residual was changed.")

    # Means are taken.

    def mean(self, place: Place, scale: float, out: torch.Tensor | None = None) -> torch.Tensor:
        """The mean of one tensor, in `out` or else in storage that is the caller's from now on."""
        bucket, slot = place
        exchange, flight = self._exchanges[bucket], self._flights[bucket]
        source = flight.sources[slot]
        if not self.applied:
            return (torch.empty_like(source.grad) if out is None else out).fill_(float("nan"))
        begun = perf_counter()
        mean = exchange.view(flight, slot, scale)
        if mean is None:
            flat = output_for(source, flight.states[slot], out)
            exchange.mean(flight, slot, flat, scale)
            mean = deliver(flat, source.grad)
        if out is not None and mean.data_ptr() != out.data_ptr():
            mean = out.copy_(mean)
        self._times.ended = perf_counter()
        self._times.codec += self._times.ended - begun
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
        begun, waited = perf_counter(), self._waited
        try:
            yield
        finally:
            ended, more = perf_counter(), self._waited - waited
            self._times.codec += ended - begun - more
            self._times.waited += more
            self._times.ended = ended

    @property
    def _waited(self) -> float:
        return sum(flight.wait_seconds for flight in self._flights.values())

    @property
    def times(self) -> Times:
        """How long it has taken so far."""
        return self._times


def _finish(exchange: Exchange, flight: Flight, timeout: float) -> None:
    """Note what is wrong with a message, so that the remaining collectives end before it is raised."""
    try:
        exchange.finish(flight, timeout)
    except PayloadError as error:
        flight.error = flight.error or error
