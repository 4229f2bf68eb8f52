"""Which tensor travels with which codec in which bucket; decided from facts that all ranks share.

Words: a *lane* is a way to combine ranks (kind and wire dtype); a *bucket* is what one message carries, tensors of
one lane; a *slot* is one tensor's place in a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..compressors import Compressor, NoCompression, TensorMeta, choose
from ..compressors.errors import ConfigError
from .transport import Transport

__all__ = ["Bucket", "EXCHANGES", "Planner", "Slot"]

EXCHANGES = ("auto", "all_reduce", "gather", "two_phase")


#: a message header counts its tensors in 16 bits
MAX_SLOTS = 0xFFFF


class Lane(NamedTuple):
    kind: str
    dtype: torch.dtype = torch.uint8


@dataclass(frozen=True)
class Slot:
    """One tensor in a bucket; `reason` says why it travels dense, or is None."""

    meta: TensorMeta
    codec: Compressor
    reason: str | None


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel in one message. `name` prefixes the names of its collectives."""

    name: str
    lane: Lane
    slots: tuple[Slot, ...]


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
        if exchange not in EXCHANGES:
            raise ConfigError(f"exchange is {exchange!r}; allowed are {', '.join(EXCHANGES)}")
        if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ConfigError(f"bucket_bytes is {bucket_bytes!r}; it must be a whole number of bytes, 1 or more")
        self._compressor = compressor
        self._transport = transport
        self._exchange = exchange
        self._bucket_bytes = bucket_bytes
        if exchange == "all_reduce":
            self._check_all_reduce()

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
            Bucket(name=f"{prefix}.{index}", lane=lane, slots=tuple(slots))
            for index, (lane, slots) in enumerate(cut, start=first)
        ]

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
        byte_lanes = {lane for lane, slot in zip(lanes, slots, strict=True) if slot.reason is None and _is_bytes(lane)}
        ride = min(byte_lanes) if byte_lanes else None
        return [
            (ride if ride and slot.reason is not None else lane, slot) for lane, slot in zip(lanes, slots, strict=True)
        ]

    def _lane(self, slot: Slot) -> Lane:
        dtype = slot.codec.wire_dtype(slot.meta)
        can_add = slot.codec.summable(slot.meta) and dtype in self._transport.sum_dtypes
        # A 16-bit sum is rounded on the wire, where no residual sees it.
        loses = dtype.itemsize < 4 and bool(slot.codec.elementwise_state)
        if can_add and (self._exchange == "all_reduce" or (self._exchange == "auto" and not loses)):
            return Lane("all_reduce", dtype)
        if self._exchange in ("gather", "two_phase"):
            return Lane(self._exchange)
        # Gathering sends c(W-1) bytes, two phases 2c(W-1)/W: equal at W = 2, where gathering loses less. A sparse
        # sum is not sparse enough to be encoded again.
        return Lane("gather" if slot.codec.sparse or self._transport.world_size == 2 else "two_phase")

    def _check_all_reduce(self) -> None:
        probe = TensorMeta(name="probe", shape=(1024, 1024), dtype=torch.float32)
        codec = choose(self._compressor, probe).codec
        dtype = codec.wire_dtype(probe)
        if not codec.summable(probe):
            raise ConfigError(
                f"exchange='all_reduce' adds payloads, and those of {codec!r} cannot be added: "
                "use exchange='auto', 'gather' or 'two_phase', or RandomK"
            )
        if dtype not in self._transport.sum_dtypes:
            raise ConfigError(
                f"exchange='all_reduce': {self._transport.kind} cannot add {dtype}: use exchange='auto', or FP16"
            )


def _is_bytes(lane: Lane) -> bool:
    return lane.kind != "all_reduce"
