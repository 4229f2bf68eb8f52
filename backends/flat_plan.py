"""What a call on a flat bucket asks for, and how it is carried out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from .exchange import Exchange
from .parts import Part
from .registry import Place, bucket_statistics
from .statistics import BucketStatistics, StepStatistics

__all__ = ["FlatPlan", "Request"]


class Request(NamedTuple):
    """What a call asks for; equal on all ranks.

    Attributes:
        parts: what is in the bucket.
        numel, dtype: of the bucket.
        bounds: who owns which run of it, for a reduce-scatter; else None.
        exact: nothing is compressed.
    """

    parts: tuple[Part, ...]
    numel: int
    dtype: torch.dtype
    bounds: tuple[int, ...] | None
    exact: bool

    @property
    def raw_bytes(self) -> int:
        """Bytes of the gradients, without padding."""
        return sum(part.numel for part in self.parts) * self.dtype.itemsize

    def head(self) -> str:
        """All in one line."""
        what = "all_reduce" if self.bounds is None else f"reduce_scatter at {list(self.bounds)}"
        names = [part.name for part in self.parts]
        parts = f"{len(names)} parts from {names[0]!r} to {names[-1]!r}" if names else "nothing but padding"
        return f"{what}: {self.numel} {self.dtype}{', exact' if self.exact else ''}, {parts}"

    def lines(self) -> list[str]:
        """What ranks compare."""
        return [self.head(), *(f"part {part.name}: {tuple(part.shape)} {part[2:]}" for part in self.parts)]


@dataclass(frozen=True)
class FlatPlan:
    """How one kind of flat bucket is exchanged.

    Attributes:
        request: what was asked for.
        digest: of the request and of what all requests of the reducer have in common.
        name: prefix of its collectives' names.
        exchanges: what carries it; none where the bucket is summed as it is, or has no elements.
        summed: the bucket is summed as it is.
        places: every part, cut where the owner changes, and where it travels.
        given: the run of the bucket that this rank gets.
        blanks: the padding in that run.
        per_call: the bytes of every call.
    """

    request: Request
    digest: bytes
    name: str
    exchanges: Sequence[Exchange]
    summed: bool
    places: Sequence[tuple[Place, Part]]
    given: tuple[int, int]
    blanks: Sequence[tuple[int, int]]
    per_call: StepStatistics

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {part.name: math.prod(part.shape) for part in self.request.parts}

    def is_given(self, part: Part) -> bool:
        """Whether this rank gets the mean of a part."""
        return self.given[0] <= part.start < self.given[1]

    def numel_of(self, name: str) -> int:
        """Elements of a whole tensor."""
        return self._sizes[name]

    def statistics(self) -> list[BucketStatistics]:
        """Of the messages; of the bucket itself where it is summed as it is."""
        if not self.summed:
            return [bucket_statistics(exchange) for exchange in self.exchanges]
        return [
            BucketStatistics(
                name=self.name,
                exchange="all_reduce",
                tensors=len(self.request.parts),
                raw_bytes=self.request.raw_bytes,
                sent_bytes=self.per_call.sent_bytes,
            )
        ]
