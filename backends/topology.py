"""Which ranks share a host, and with it a link to the others that is slower than what lies between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from .transport import Transport

__all__ = ["Topology", "learn"]

#: what a rank says of its host if it does not know
_UNKNOWN = -1


@dataclass(frozen=True)
class Topology:
    """Attributes:
    hosts: by rank, the number of its host; hosts count from 0, in the order of their first ranks.
    """

    hosts: tuple[int, ...]

    @classmethod
    def of(cls, keys: Iterable[int | None]) -> Topology:
        """From what each rank calls its host; None: one of its own."""
        numbers: dict[object, int] = {}
        return cls(
            tuple(
                numbers.setdefault((key, rank) if key is None else key, len(numbers)) for rank, key in enumerate(keys)
            )
        )

    @classmethod
    def apart(cls, world_size: int) -> Topology:
        """Every rank on a host of its own."""
        return cls(tuple(range(world_size)))

    @property
    def world_size(self) -> int:
        return len(self.hosts)

    @cached_property
    def count(self) -> int:
        """How many hosts there are."""
        return len(set(self.hosts))

    @cached_property
    def per_host(self) -> int | None:
        """How many ranks each host has; None where they differ."""
        sizes = set(Counter(self.hosts).values())
        return sizes.pop() if len(sizes) == 1 else None

    def neighbours(self, rank: int) -> list[int]:
        """The ranks of a rank's host, itself among them."""
        return [other for other, host in enumerate(self.hosts) if host == self.hosts[rank]]

    def peers(self, rank: int) -> list[int]:
        """By host, the rank that has this rank's place among its neighbours; only where `per_host` is a number."""
        place = self.neighbours(rank).index(rank)
        first = [self.hosts.index(host) for host in range(self.count)]
        return [self.neighbours(one)[place] for one in first]


def learn(transport: Transport, name: str, timeout: float) -> Topology:
    """Ask all ranks where they are; a collective operation.

    Args:
        transport: the ranks.
        name: of the collective.
        timeout: seconds that it may take.
    """
    own = torch.tensor([_UNKNOWN if transport.host is None else transport.host], dtype=torch.int64)
    sizes = [own.nbytes] * transport.world_size
    keys = transport.all_gather(own.view(torch.uint8), sizes, name).wait(timeout).contiguous().view(torch.int64)
    return Topology.of(None if key == _UNKNOWN else key for key in keys.tolist())
