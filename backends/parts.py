"""A flat bucket that somebody else filled: which elements of which tensors lie where."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from ..compressors import TensorMeta
from ..compressors.errors import UsageError

__all__ = ["Part", "check_parts", "cut_at", "gaps"]


class Part(NamedTuple):
    """`flat[start : start + numel]` holds the elements `offset` to `offset + numel` of a flattened tensor.

    Attributes:
        name: the tensor's; what is left out of a step is kept by it.
        shape: of the whole tensor.
        start: where in the flat bucket.
        numel: how many elements of the tensor are there.
        offset: the first of them within the flattened tensor.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    numel: int
    offset: int = 0

    @property
    def stop(self) -> int:
        """Where in the flat bucket it ends."""
        return self.start + self.numel

    @property
    def end(self) -> int:
        """Where in the flattened tensor it ends."""
        return self.offset + self.numel

    def tensor(self, dtype: torch.dtype) -> TensorMeta:
        """The whole tensor's meta."""
        return TensorMeta(name=self.name, shape=tuple(self.shape), dtype=dtype)

    def meta(self, dtype: torch.dtype) -> TensorMeta:
        """The meta of what lies here, a tensor like any other to a codec."""
        if self.numel == math.prod(self.shape):
            return self.tensor(dtype)
        return TensorMeta(name=f"{self.name}[{self.offset}:{self.end}]", shape=(self.numel,), dtype=dtype)

    def cut(self, low: int, high: int) -> Part:
        """The part of it between two places of the flat bucket; it may be empty."""
        start, stop = max(self.start, low), min(self.stop, high)
        return self._replace(start=start, numel=max(0, stop - start), offset=self.offset + start - self.start)


def check_parts(parts: Sequence[Part], numel: int) -> list[Part]:
    """The parts that have elements, in the order of the flat bucket.

    Raises:
        UsageError: a part lies outside of its tensor or of the bucket, or two of them overlap in either.
    """
    for part in parts:
        if not 0 <= part.start <= part.stop <= numel or not 0 <= part.offset <= part.end <= math.prod(part.shape):
            raise UsageError(
                f"{part} does not fit: the bucket has {numel} elements, and the tensor {math.prod(part.shape)}"
            )
    ordered = sorted((part for part in parts if part.numel), key=lambda part: part.start)
    for one, other in pairwise(ordered):
        if other.start < one.stop:
            raise UsageError(f"{one} and {other} overlap in the bucket")
    by_tensor = sorted(ordered, key=lambda part: (part.name, part.offset))
    for one, other in pairwise(by_tensor):
        if one.name == other.name and (other.offset < one.end or tuple(other.shape) != tuple(one.shape)):
            raise UsageError(f"{one} and {other} are of one name: they must not overlap, nor differ in shape")
    return ordered


def cut_at(parts: Iterable[Part], bounds: Sequence[int]) -> list[tuple[int, Part]]:
    """The parts, cut where the owner changes: rank r owns `bounds[r]` to `bounds[r + 1]`. With each its owner."""
    cuts = [
        (rank, part.cut(bounds[rank], bounds[rank + 1]))
        for part in parts
        for rank in range(bisect_right(bounds, part.start) - 1, bisect_left(bounds, part.stop))
    ]
    return [(rank, part) for rank, part in cuts if part.numel]


def gaps(covered: Iterable[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """What lies between `low` and `high` outside of the ranges, which ascend and do not overlap."""
    inside = [(start, stop) for start, stop in covered if low < stop and start < high]
    edges = [low, *(edge for pair in inside for edge in pair), high]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]
