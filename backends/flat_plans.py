"""How the ranks combine a flat bucket: decided by each of them from what all know, when such a bucket comes first."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from ..compressors import Compressor, NoCompression
from ..compressors.errors import ConfigError, UsageError
from .bucket import MAX_SLOTS, Bucket, Lane, Slot
from .exchange import Exchange
from .fingerprint import digest_of
from .flat_plan import FlatPlan, Request
from .parts import Part, check_parts, cut_at, gaps
from .plan import Planner
from .reduce_scatter import ReduceScatter
from .registry import KINDS, Place, tensor_statistics
from .statistics import Statistics, StepStatistics
from .transport import Transport

__all__ = ["FlatPlans"]

#: plans that are kept; where buckets never come twice the oldest one is forgotten, on all ranks alike
LIMIT = 1024

SCATTERED = Lane("reduce_scatter")


class FlatPlans:
    """Makes plans, and keeps them.

    Args:
        compressor: what the user chose, with its memory and policy.
        transport: the ranks.
        exchange: one of `plan.EXCHANGES`, for all-reduced buckets.
        prefix: of all collectives' names.
        facts: lines that must be equal on all ranks.
    """

    def __init__(
        self,
        compressor: Compressor,
        transport: Transport,
        exchange: str,
        *,
        prefix: str,
        facts: Sequence[str],
    ) -> None:
        if exchange == "hierarchical":
            raise ConfigError("exchange='hierarchical' is not for flat buckets, whose pieces change: use 'auto'")
        self._planner = Planner(compressor, transport, exchange, bucket_bytes=1 << 62)
        self._exact = Planner(NoCompression(), transport, "gather", bucket_bytes=1 << 62)
        self._transport = transport
        self._prefix = prefix
        self._facts = list(facts)
        #: plans that were kept so far
        self._count = 0
        self._plans: dict[Request, FlatPlan] = {}
        #: the shape of every tensor that has come so far
        self.shapes: dict[str, tuple[int, ...]] = {}

    def find(self, request: Request) -> FlatPlan:
        """The plan for a request. A new one is not kept, for other ranks may ask for something else.

        Raises:
            UsageError: the parts or bounds do not fit each other, the bucket, or what has come before.
        """
        return self._plans.get(request) or self._make(request)

    def keep(self, plan: FlatPlan) -> None:
        """All ranks ask for this plan: it is the last one to be forgotten now."""
        if self._plans.pop(plan.request, None) is None:
            self._count += 1
            self.shapes |= {part.name: tuple(part.shape) for part in plan.request.parts if part.numel}
        self._plans[plan.request] = plan
        if len(self._plans) > LIMIT:
            del self._plans[next(iter(self._plans))]

    def statistics(self) -> Statistics:
        """An account with the buckets and tensors of the plans that are kept, and nothing sent yet."""
        plans = self._plans.items()
        compressed = [exchange for request, plan in plans if not request.exact for exchange in plan.exchanges]
        slots = {slot.meta.name: slot for exchange in compressed for slot in exchange.bucket.slots}
        return Statistics(
            tensors=tuple(tensor_statistics(slot) for slot in slots.values()),
            buckets=tuple(bucket for _, plan in plans for bucket in plan.statistics()),
            error_feedback=any(slot.codec.elementwise_state for slot in slots.values()),
        )

    def _make(self, request: Request) -> FlatPlan:
        parts = self._checked(request)
        name = f"{self._prefix}.{self._count}"
        digest = digest_of([*self._facts, *request.lines()])
        owned = [(0, part) for part in parts] if request.bounds is None else cut_at(parts, request.bounds)
        low, high = (0, request.numel) if request.bounds is None else request.bounds[self._transport.rank :][:2]
        summed = self._is_summed(request)
        exchanges, places = ([], []) if summed else self._exchanges(request, owned, name, digest)
        return FlatPlan(
            request=request,
            digest=digest,
            name=name,
            exchanges=exchanges,
            summed=summed,
            places=places,
            given=(low, high),
            blanks=gaps([(part.start, part.stop) for part in parts], low, high),
            per_call=self._per_call(request, exchanges, summed=summed),
        )

    def _checked(self, request: Request) -> list[Part]:
        parts = check_parts(request.parts, request.numel)
        for part in parts:
            known = self.shapes.get(part.name, tuple(part.shape))
            if tuple(part.shape) != known:
                raise UsageError(f"tensor {part.name!r} is {tuple(part.shape)} here, and was {known} before")
        if request.bounds is not None:
            _check_bounds(request.bounds, request.numel, self._transport.world_size)
        return parts

    def _is_summed(self, request: Request) -> bool:
        alone, scattered = self._transport.world_size == 1, request.bounds is not None
        return request.exact and not alone and not scattered and request.dtype in self._transport.sum_dtypes

    def _exchanges(
        self, request: Request, owned: Sequence[tuple[int, Part]], name: str, digest: bytes
    ) -> tuple[list[Exchange], list[tuple[Place, Part]]]:
        planner, dtype = self._exact if request.exact else self._planner, request.dtype
        slots = [planner.slot(part.meta(dtype), part.tensor(dtype)) for _, part in owned]
        found = {slot.meta.name: one for slot, one in zip(slots, owned, strict=True)}
        if len(found) < len(slots):
            raise UsageError("a tensor is named like a piece of another one, as in 'w' and 'w[0:8]': rename it")
        if request.bounds is None or self._transport.world_size == 1:
            buckets = planner.fill([slots], name)
        else:
            buckets = _in_order(slots, name)
        owners = [[found[slot.meta.name][0] for slot in bucket.slots] for bucket in buckets]
        places = [
            (Place(index, number), found[slot.meta.name][1])
            for index, bucket in enumerate(buckets)
            for number, slot in enumerate(bucket.slots)
        ]
        return [self._exchange(*pair, digest) for pair in zip(buckets, owners, strict=True)], places

    def _exchange(self, bucket: Bucket, owners: Sequence[int], digest: bytes) -> Exchange:
        if bucket.lane == SCATTERED:
            return ReduceScatter(bucket, self._transport, digest, guarded=True, owners=owners)
        return KINDS[bucket.lane.kind](bucket, self._transport, digest, guarded=True)

    def _per_call(self, request: Request, exchanges: Sequence[Exchange], *, summed: bool) -> StepStatistics:
        world_size = self._transport.world_size
        ring = Fraction((2 if request.bounds is None else 1) * (world_size - 1), world_size)
        itemsize = request.dtype.itemsize
        whole = request.numel * itemsize
        return StepStatistics(
            raw_bytes=int(ring * request.raw_bytes),
            fp16_bytes=int(ring * request.raw_bytes * 2 / itemsize),
            sent_bytes=int(ring * whole) if summed else sum(exchange.sent_bytes for exchange in exchanges),
        )


def _check_bounds(bounds: Sequence[int], numel: int, world_size: int) -> None:
    ascending = all(low <= high for low, high in pairwise(bounds))
    if len(bounds) != world_size + 1 or not ascending or bounds[0] != 0 or bounds[-1] != numel:
        raise UsageError(
            f"bounds are {list(bounds)}: they need one more entry than the {world_size} ranks, and ascend from 0 "
            f"to the bucket's {numel} elements"
        )


def _in_order(slots: Sequence[Slot], name: str) -> list[Bucket]:
    """Buckets for a reduce-scatter; more than one only where a header could not count the pieces."""
    batches = [slots[start : start + MAX_SLOTS] for start in range(0, len(slots), MAX_SLOTS)]
    return [Bucket(f"{name}.{index}", SCATTERED, tuple(batch)) for index, batch in enumerate(batches)]
