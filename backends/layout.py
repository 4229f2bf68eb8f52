"""Where each tensor's payload lies in a bucket's message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from ..compressors import NoCompression, TensorMeta
from ..compressors.wire import HEADER_BYTES, aligned
from .bucket import Slot

__all__ = ["Layout", "Piece", "owned", "raw", "shards", "whole"]


@dataclass(frozen=True)
class Piece:
    """The elements `low` to `high` of a slot's tensor, and the place of their payload in the message.

    A piece has a meta of its own, for a codec sees it as a tensor like any other.
    """

    slot: int
    low: int
    high: int
    meta: TensorMeta
    dtype: torch.dtype
    start: int
    nbytes: int

    def payload(self, message: torch.Tensor) -> torch.Tensor:
        """This piece's part of the message, as the codec's payload tensor."""
        return message[self.start : self.start + self.nbytes].view(self.dtype)


@dataclass(frozen=True)
class Layout:
    """A message: a header, then the payloads of `pieces`, each aligned; `nbytes` long altogether."""

    pieces: tuple[Piece, ...]
    nbytes: int

    def of_slot(self, slot: int) -> list[Piece]:
        return [piece for piece in self.pieces if piece.slot == slot]


def whole(slots: Sequence[Slot]) -> Layout:
    """One message with all tensors of the bucket."""
    return _layout(slots, [(index, 0, slot.meta.numel) for index, slot in enumerate(slots)])


def shards(slots: Sequence[Slot], count: int) -> list[Layout]:
    """One message per owner, all of about the same length: each owns a run of elements, which may cut tensors."""
    return [_layout(slots, _cut(slots, low, high)) for low, high in pairwise(_bounds(slots, count))]


def raw(slots: Sequence[Slot], places: int, hosts: int) -> list[Layout]:
    """One message per place within a host, with gradients as they are: each gets a run of as many shards as hosts."""
    plain = [replace(slot, codec=NoCompression()) for slot in slots]
    bounds = _bounds(slots, places * hosts)[::hosts]
    return [_layout(plain, _cut(slots, low, high)) for low, high in pairwise(bounds)]


def owned(slots: Sequence[Slot], owners: Sequence[int], world_size: int) -> list[Layout]:
    """One message per owner, with the tensors that are its own; `owners` are ranks, by slot."""
    parts: list[list[tuple[int, int, int]]] = [[] for _ in range(world_size)]
    for index, (slot, owner) in enumerate(zip(slots, owners, strict=True)):
        parts[owner].append((index, 0, slot.meta.numel))
    return [_layout(slots, own) for own in parts]


def _bounds(slots: Sequence[Slot], count: int) -> list[int]:
    """Elements at which the bucket's payloads are cut into so many parts of about as many bytes."""
    sizes = [slot.codec.nbytes(slot.meta) for slot in slots]
    bounds, start, before, total = [0], 0, 0, sum(sizes)
    for slot, nbytes in zip(slots, sizes, strict=True):
        while len(bounds) < count and total * len(bounds) < (before + nbytes) * count:
            wanted = total * len(bounds) - before * count
            bounds.append(start + slot.meta.numel * wanted // (nbytes * count))
        start, before = start + slot.meta.numel, before + nbytes
    return bounds + [start] * (count + 1 - len(bounds))


def _cut(slots: Sequence[Slot], low: int, high: int) -> list[tuple[int, int, int]]:
    parts = []
    start = 0
    for index, slot in enumerate(slots):
        end = start + slot.meta.numel
        if max(start, low) < min(end, high):
            parts.append((index, max(start, low) - start, min(end, high) - start))
        start = end
    return parts


def _layout(slots: Sequence[Slot], parts: Sequence[tuple[int, int, int]]) -> Layout:
    pieces = []
    start = HEADER_BYTES
    for index, low, high in parts:
        piece = _piece(slots[index], index, low, high, start)
        pieces.append(piece)
        start = aligned(start + piece.nbytes)
    return Layout(tuple(pieces), start)


def _piece(slot: Slot, index: int, low: int, high: int, start: int) -> Piece:
    meta = slot.meta
    if (low, high) != (0, meta.numel):
        meta = replace(meta, name=f"{meta.name}[{low}:{high}]", shape=(high - low,))
    return Piece(index, low, high, meta, slot.codec.wire_dtype(meta), start, slot.codec.nbytes(meta))
