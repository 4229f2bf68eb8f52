"""The tensors that a reducer serves, their buckets, and the agreement of all ranks about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import torch

from ..compressors import NoCompression, TensorMeta
from ..compressors.errors import UsageError
from .all_reduce import AllReduce
from .bucket import Bucket, Slot
from .bundles import Bundled, bundles
from .exchange import Exchange
from .fingerprint import agree
from .gather import Gather
from .hierarchical import Hierarchical
from .identity import Identity
from .plan import Planner
from .statistics import BucketStatistics, Statistics, StepStatistics, TensorStatistics
from .transport import Transport
from .two_phase import TwoPhase

__all__ = ["Entry", "Place", "Registry", "bucket_statistics", "tensor_statistics"]

#: here nothing is gained by bundles
WITHOUT_MESSAGES = ("all_reduce", "identity")

#: bytes of compressed gradients
WORTH_A_THREAD = 1 << 20

KINDS: dict[str, type[Exchange]] = {
    "all_reduce": AllReduce,
    "gather": Gather,
    "identity": Identity,
    "sparse": TwoPhase,
    "two_phase": TwoPhase,
}


class Place(NamedTuple):
    """Where a tensor is: number of its bucket, and its slot there."""

    bucket: int
    slot: int


class Entry(NamedTuple):
    """A registered tensor, as it is looked up for every gradient.

    Attributes:
        shape, dtype: what a gradient must have.
        place: where it goes.
        keeps: its codec keeps something of the tensor's own size between steps.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    place: Place
    keeps: bool


class Registry:
    """Grows with every `add`; never forgets.

    Args:
        planner: assigns tensors to buckets.
        transport: the ranks.
        prefix: of all collectives' names.
        facts: lines that must be equal on all ranks, besides the tensors themselves.
    """

    def __init__(self, planner: Planner, transport: Transport, prefix: str, facts: Sequence[str]) -> None:
        self._planner = planner
        self._transport = transport
        self._prefix = prefix
        self._facts = list(facts)
        self.metas: dict[str, TensorMeta] = {}
        self.entries: dict[str, Entry] = {}
        #: the tensors whose codec may keep a state
        self.stateful: dict[str, Place] = {}
        self.exchanges: list[Exchange] = []
        #: so much is encoded that another thread is worth its wake-up
        self.gains_by_overlap = False

    def add(self, metas: Sequence[TensorMeta], groups: Sequence[Sequence[str]], *, step: int, timeout: float) -> None:
        """Plan buckets for further tensors, once all ranks are known to plan the same."""
        grouped = _grouped(metas, groups, self.metas)
        if not self.exchanges:
            self._planner.locate(f"{self._prefix}.hosts", timeout)
        buckets = self._planner.buckets(grouped, self._prefix, first=len(self.exchanges))
        lines = [*self._facts, f"step {step}", *(describe(slot, bucket) for bucket in buckets for slot in bucket.slots)]
        digest = agree(lines, self._transport, f"{self._prefix}.{len(self.exchanges)}", timeout)
        self._planner.check_levels()
        self.metas.update({meta.name: meta for meta in metas})
        for bucket in buckets:
            self._append(bucket, digest)
        guarded = any(not isinstance(slot.codec, NoCompression) for slot in self.slots())
        for exchange in self.exchanges:
            exchange.guarded = guarded
        raw = sum(slot.meta.raw_bytes for slot in self.slots() if not isinstance(slot.codec, NoCompression))
        self.gains_by_overlap = self._transport.world_size > 1 and raw >= WORTH_A_THREAD

    def entry(self, name: str, grad: torch.Tensor) -> Entry:
        """A tensor's entry, for a gradient that fits it.

        Raises:
            UsageError: the tensor is unknown, or the gradient is none of its.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise UsageError(f"tensor {name!r} is not registered: call register() with it on every rank first")
        if grad.shape != entry.shape or grad.dtype != entry.dtype:
            raise UsageError(
                f"gradient {name!r} is {tuple(grad.shape)} {grad.dtype}, registered as {entry.shape} {entry.dtype}"
            )
        return entry

    def slots(self) -> list[Slot]:
        return [slot for exchange in self.exchanges for slot in exchange.bucket.slots]

    def per_step(self) -> StepStatistics:
        """The bytes of every step."""
        slots, world = self.slots(), self._transport.world_size
        ring = Fraction(2 * (world - 1), world)
        return StepStatistics(
            raw_bytes=int(ring * sum(slot.meta.raw_bytes for slot in slots)),
            fp16_bytes=int(ring * sum(2 * slot.meta.numel for slot in slots)),
            sent_bytes=sum(exchange.sent_bytes for exchange in self.exchanges),
        )

    def statistics(self) -> Statistics:
        """An account with the tensors and nothing sent yet."""
        return Statistics(
            tensors=tuple(tensor_statistics(slot) for slot in self.slots()),
            buckets=tuple(bucket_statistics(exchange) for exchange in self.exchanges),
            error_feedback=any(slot.codec.elementwise_state for slot in self.slots()),
        )

    def _append(self, bucket: Bucket, digest: bytes) -> None:
        index = len(self.exchanges)
        for number, slot in enumerate(bucket.slots):
            meta, place = slot.meta, Place(index, number)
            self.entries[meta.name] = Entry(tuple(meta.shape), meta.dtype, place, bool(slot.codec.elementwise_state))
            if not isinstance(slot.codec, NoCompression):
                self.stateful[meta.name] = place
        self.exchanges.append(self._bundled(bucket, digest))

    def _bundled(self, bucket: Bucket, digest: bytes) -> Exchange:
        if len(bundles(bucket.slots)) == len(bucket.slots) or bucket.lane.kind in WITHOUT_MESSAGES:
            return self._exchange(bucket, digest)
        make = partial(self._exchange, digest=digest)
        return Bundled(bucket, self._transport, digest, guarded=False, make=make)

    def _exchange(self, bucket: Bucket, digest: bytes) -> Exchange:
        if bucket.lane.kind == "hierarchical":
            topology = self._planner.topology
            return Hierarchical(bucket, self._transport, digest, guarded=False, topology=topology)
        return KINDS[bucket.lane.kind](bucket, self._transport, digest, guarded=False)


def describe(slot: Slot, bucket: Bucket) -> str:
    """One line of the fingerprint."""
    return f"tensor {slot.meta.name}: {tuple(slot.meta.shape)} {slot.meta.dtype} by {slot.codec!r} in {bucket.name}"


def bucket_statistics(exchange: Exchange) -> BucketStatistics:
    """A bucket's part in every step."""
    bucket = exchange.bucket
    return BucketStatistics(
        name=bucket.name,
        exchange=bucket.lane.kind,
        tensors=len(bucket.slots),
        raw_bytes=sum(slot.meta.raw_bytes for slot in bucket.slots),
        sent_bytes=exchange.sent_bytes,
        predictions=bucket.predictions,
    )


def tensor_statistics(slot: Slot) -> TensorStatistics:
    """A tensor's part in every step."""
    return TensorStatistics(
        name=slot.meta.name,
        numel=slot.meta.numel,
        raw_bytes=slot.meta.raw_bytes,
        payload_bytes=slot.codec.nbytes(slot.meta),
        codec=repr(slot.codec),
        dense_reason=slot.reason,
    )


def _grouped(
    metas: Sequence[TensorMeta], groups: Sequence[Sequence[str]], registered: dict[str, TensorMeta]
) -> list[list[TensorMeta]]:
    """The metas of each group, and those in no group as the last one."""
    known = {meta.name: meta for meta in metas}
    members = Counter(name for group in groups for name in group)
    double = sorted(
        {name for name, times in Counter(meta.name for meta in metas).items() if times > 1}
        | registered.keys() & known.keys()
        | {name for name, times in members.items() if times > 1}
    )
    if double:
        raise UsageError(f"tensor {double[0]!r} is registered or grouped twice; a name must be unique in a reducer")
    unknown = sorted(members.keys() - known.keys())
    if unknown:
        raise UsageError(f"a group names {unknown[0]!r}, which is not among the tensors being registered")
    rest = [meta for meta in metas if meta.name not in members]
    return [[known[name] for name in group] for group in groups if group] + ([rest] if rest else [])
