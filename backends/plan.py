"""Which tensor travels with which codec in which bucket, and how; decided from facts that all ranks share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..compressors import Compressor, NoCompression, TensorMeta, choose
from ..compressors.errors import ConfigError
from ..compressors.options import check_choice
from .bucket import MAX_SLOTS, Bucket, Lane, Slot
from .bundles import bundles
from .prediction import cheapest, predict
from .topology import Topology, learn
from .transport import Transport

__all__ = ["EXCHANGES", "Planner"]

#: "auto" chooses; the others force one
EXCHANGES = ("auto", "all_reduce", "gather", "two_phase", "sparse", "hierarchical")
#: messages of bytes; of what kind is chosen when their bucket is full
_BYTES = Lane("bytes")


class Planner:
    """Assigns tensors to buckets.

    Args:
        compressor: what the user chose, with its memory and policy.
        transport: tells what can be added on the wire, and the world size.
        exchange: one of `EXCHANGES`.
        bucket_bytes: a bucket is closed when its gradients reach this many bytes.

    Raises:
        ConfigError: the exchange is unknown, or cannot carry the compressor's payloads.
    """

    def __init__(self, compressor: Compressor, transport: Transport, exchange: str, bucket_bytes: int) -> None:
        check_choice("exchange", exchange, EXCHANGES)
        if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ConfigError(f"bucket_bytes is {bucket_bytes!r}; it must be a whole number of bytes, 1 or more")
        self._compressor = compressor
        self._transport = transport
        self._exchange = exchange
        self._bucket_bytes = bucket_bytes
        #: where the ranks are, as far as it is known
        self.topology = Topology.apart(transport.world_size)
        if exchange == "all_reduce":
            self._check_all_reduce()
        if exchange == "sparse":
            self._check_sparse()

    def locate(self, name: str, timeout: float) -> None:
        """Find out where the ranks are; a collective operation of that name. Two ranks have no choice to make.

        Also where an exchange is forced: whether all ranks force the same is not known yet.
        """
        if self._transport.world_size > 2:
            self.topology = learn(self._transport, name, timeout)

    def check_levels(self) -> None:
        """Refuse an exchange that the ranks' places do not allow, once all ranks are known to ask for it.

        Raises:
            ConfigError: "hierarchical" was asked for, and there are no two levels.
        """
        if self._exchange == "hierarchical" and self._transport.world_size > 1 and not self._has_levels:
            raise ConfigError(
                f"exchange='hierarchical' needs two hosts or more with as many ranks each, two or more; by rank the "
                f"hosts are {list(self.topology.hosts)}: use exchange='auto'"
            )

    @property
    def _has_levels(self) -> bool:
        """Whether there are several hosts, with several ranks each, and as many."""
        return self.topology.count > 1 and (self.topology.per_host or 1) > 1

    def buckets(self, groups: Sequence[Sequence[TensorMeta]], prefix: str, first: int = 0) -> list[Bucket]:
        """Buckets for the tensors of each group; tensors of different groups never share one."""
        return self.fill([[self.slot(meta) for meta in group] for group in groups], prefix, first)

    def slot(self, meta: TensorMeta, whole: TensorMeta | None = None) -> Slot:
        """The slot of a tensor; or of `meta`, a piece of the tensor `whole`, with the codec that `whole` gets."""
        if self._transport.world_size == 1:
            return Slot(meta, NoCompression(), "one process")
        choice = choose(self._compressor, whole or meta)
        return Slot(meta, choice.codec, choice.reason)

    def fill(self, groups: Sequence[Sequence[Slot]], prefix: str, first: int = 0) -> list[Bucket]:
        """Buckets for slots that are made already; as `buckets`."""
        cut = [lane_slots for group in groups for lane_slots in self._cut(group)]
        return [
            self._bucket(f"{prefix}.{index}", lane, tuple(slots))
            for index, (lane, slots) in enumerate(cut, start=first)
        ]

    def _bucket(self, name: str, lane: Lane, members: Sequence[Slot]) -> Bucket:
        slots = tuple(members)
        if lane != _BYTES:
            return Bucket(name, lane, slots)
        together = [bundle.slot for bundle in bundles(slots)]
        predictions = tuple(predict(kind, together, self.topology) for kind in self._kinds(slots))
        return Bucket(name, Lane(cheapest(predictions).exchange), slots, predictions)

    def _kinds(self, slots: Sequence[Slot]) -> list[str]:
        """The exchanges that come into question."""
        if self._exchange not in ("auto", "all_reduce", "hierarchical"):
            return [self._exchange]
        if self._exchange == "hierarchical" and self._has_levels:
            return ["hierarchical"]
        # a sum of sparse vectors is not sparse: its owner chooses again
        sparse = any(slot.codec.sparse for slot in slots)
        flat = ["gather", "sparse" if sparse else "two_phase"]
        return [*flat, "hierarchical"] if self._has_levels else flat

    def _cut(self, group: Sequence[Slot]) -> list[tuple[Lane, list[Slot]]]:
        """Fill one open bucket per lane; a bucket takes its place in the order when it is closed."""
        closed: list[tuple[Lane, list[Slot]]] = []
        opened: dict[Lane, list[Slot]] = {}
        filled: dict[Lane, int] = {}
        for lane, slot in self._assign(group):
            opened.setdefault(lane, []).append(slot)
            filled[lane] = filled.get(lane, 0) + slot.meta.raw_bytes
            if filled[lane] >= self._bucket_bytes or len(opened[lane]) == MAX_SLOTS:
                closed.append((lane, opened.pop(lane)))
                del filled[lane]
        return closed + list(opened.items())

    def _assign(self, slots: Sequence[Slot]) -> list[tuple[Lane, Slot]]:
        if self._transport.world_size == 1:
            return [(Lane("identity"), slot) for slot in slots]
        lanes = [self._lane(slot) for slot in slots]
        compressed = any(lane == _BYTES and slot.reason is None for lane, slot in zip(lanes, slots, strict=True))
        return [
            (_BYTES if compressed and slot.reason is not None else lane, slot)
            for lane, slot in zip(lanes, slots, strict=True)
        ]

    def _lane(self, slot: Slot) -> Lane:
        dtype = slot.codec.wire_dtype(slot.meta)
        can_add = slot.codec.summable(slot.meta) and dtype in self._transport.sum_dtypes
        # A 16-bit sum is rounded on the wire, where no residual sees it.
        loses = dtype.itemsize < 4 and bool(slot.codec.elementwise_state)
        if can_add and (self._exchange == "all_reduce" or (self._exchange == "auto" and not loses)):
            return Lane("all_reduce", dtype)
        return _BYTES

    def _check_all_reduce(self) -> None:
        probe = TensorMeta(name="probe", shape=(1024, 1024), dtype=torch.float32)
        codec = choose(self._compressor, probe).codec
        dtype = codec.wire_dtype(probe)
        if not codec.summable(probe):
            raise ConfigError(
                f"exchange='all_reduce' adds payloads, and those of {codec!r} cannot be added: "
                "use exchange='auto', or RandomK"
            )
        if dtype not in self._transport.sum_dtypes:
            raise ConfigError(
                f"exchange='all_reduce': {self._transport.kind} cannot add {dtype}: use exchange='auto', or FP16"
            )

    def _check_sparse(self) -> None:
        probe = TensorMeta(name="probe", shape=(1024, 1024), dtype=torch.float32)
        codec = choose(self._compressor, probe).codec
        if not codec.sparse:
            raise ConfigError(
                f"exchange='sparse' chooses among entries that ranks have chosen, and {codec!r} chooses none: "
                "use exchange='auto' or 'two_phase', or TopK"
            )
