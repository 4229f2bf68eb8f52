"""Little tensors that travel as they are, as one: a hundred of them cost no more than a large one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from ..compressors import NoCompression, TensorMeta
from ..compressors.errors import UsageError
from .bucket import Bucket, Slot
from .delivery import deliver
from .exchange import Clock, Exchange, Flight, Source
from .transport import Transport

__all__ = ["Bundle", "Bundled", "bundles"]

#: elements of the largest tensor that is copied to where others are
LITTLE = 1 << 16


@dataclass(frozen=True)
class Bundle:
    """Some of a bucket's slots, and the one that stands for them."""

    members: tuple[int, ...]
    slot: Slot


def bundles(slots: Sequence[Slot]) -> list[Bundle]:
    """Every slot in one of them: alone, or with others of its dtype, which come last."""
    by_dtype: dict[torch.dtype, list[int]] = {}
    for number, slot in enumerate(slots):
        if isinstance(slot.codec, NoCompression) and slot.meta.numel <= LITTLE:
            by_dtype.setdefault(slot.meta.dtype, []).append(number)
    together = [members for members in by_dtype.values() if len(members) > 1]
    taken = {member for members in together for member in members}
    alone = [Bundle((number,), slot) for number, slot in enumerate(slots) if number not in taken]
    return alone + [_joined(members, slots) for members in together]


def _joined(members: Sequence[int], slots: Sequence[Slot]) -> Bundle:
    first = slots[members[0]]
    numel = sum(slots[member].meta.numel for member in members)
    meta = TensorMeta(name=f"{first.meta.name} and {len(members) - 1} more", shape=(numel,), dtype=first.meta.dtype)
    return Bundle(tuple(members), replace(first, meta=meta))


class Bundled(Exchange):
    """Another exchange, for which each bundle is one tensor.

    Args:
        make: makes the other one, of a bucket with a slot for each bundle.
    """

    def __init__(
        self,
        bucket: Bucket,
        transport: Transport,
        digest: bytes,
        *,
        guarded: bool,
        make: Callable[[Bucket], Exchange],
    ) -> None:
        super().__init__(bucket, transport, digest, guarded=guarded)
        self._bundles = bundles(bucket.slots)
        self._inner = make(replace(bucket, slots=tuple(bundle.slot for bundle in self._bundles)))
        #: by slot, the bundle's number
        self._homes = {member: number for number, bundle in enumerate(self._bundles) for member in bundle.members}
        self._parts: dict[int, slice] = {}
        for bundle in self._bundles:
            bounds = [0, *accumulate(bucket.slots[member].meta.numel for member in bundle.members)]
            self._parts |= dict(zip(bundle.members, map(slice, bounds, bounds[1:]), strict=False))

    @property
    def phases(self) -> int:
        return self._inner.phases

    @property
    def keeps_runs(self) -> bool:
        return self._inner.keeps_runs

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    @property
    def holders(self) -> int:
        return self._inner.holders

    def own_range(self, slot: int) -> slice:
        return slice(0, 0) if self._is_joined(slot) else self._inner.own_range(self._homes[slot])

    def kept_range(self, slot: int) -> slice:
        return super().kept_range(slot) if self._is_joined(slot) else self._inner.kept_range(self._homes[slot])

    def start(self, sources: Sequence[Source], clock: Clock) -> Flight:
        inner = self._inner.start([_gathered(bundle, sources) for bundle in self._bundles], clock)
        return self._after(Flight(clock, sources, inner=inner), inner)

    def advance(self, flight: Flight, timeout: float) -> None:
        inner = self._within(flight)
        inner.phase = flight.phase
        try:
            self._inner.advance(inner, timeout)
        finally:
            self._after(flight, inner)

    def finish(self, flight: Flight, timeout: float) -> None:
        inner = self._within(flight)
        try:
            self._inner.finish(inner, timeout)
        finally:
            self._after(flight, inner)
        alone = {bundle.members[0]: number for number, bundle in enumerate(self._bundles) if len(bundle.members) == 1}
        flight.states = [
            inner.states[alone[slot]] if slot in alone else source.state for slot, source in enumerate(flight.sources)
        ]
        flight.server = {slot: inner.server[number] for slot, number in alone.items() if number in inner.server}

    def mean(self, flight: Flight, slot: int, out: torch.Tensor, scale: float) -> None:
        self._inner.mean(self._within(flight), self._homes[slot], out, scale)

    def view(self, flight: Flight, slot: int, scale: float) -> torch.Tensor | None:
        home = self._homes[slot]
        if not self._is_joined(slot):
            return self._inner.view(self._within(flight), home, scale)
        if scale == 0.0:  # what others ask for must not become zero
            return torch.zeros_like(flight.sources[slot].grad)
        if home not in flight.flats:
            flat = torch.empty(self._bundles[home].slot.meta.numel, device=flight.sources[slot].grad.device)
            self._inner.mean(self._within(flight), home, flat, scale)
            flight.flats[home] = scale, flat
        done, flat = flight.flats[home]
        part = flat[self._parts[slot]]
        return deliver(part if scale == done else part * (scale / done), flight.sources[slot].grad)

    def _is_joined(self, slot: int) -> bool:
        return len(self._bundles[self._homes[slot]].members) > 1

    def _within(self, flight: Flight) -> Flight:
        if flight.inner is None:
            raise UsageError("this bucket's exchange was not started")
        return flight.inner

    def _after(self, flight: Flight, inner: Flight) -> Flight:
        """What a step looks at, as the inner exchange has left it."""
        flight.work, flight.wait_seconds = inner.work, inner.wait_seconds
        flight.finite, flight.failed, flight.error = inner.finite, inner.failed, inner.error
        return flight


def _gathered(bundle: Bundle, sources: Sequence[Source]) -> Source:
    if len(bundle.members) == 1:
        return sources[bundle.members[0]]
    return Source(torch.cat([sources[member].grad.reshape(-1) for member in bundle.members]), donated=True)
