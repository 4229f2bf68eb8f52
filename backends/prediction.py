"""What a bucket will cost by each exchange, before any of it is sent: computed alike on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from .bucket import Slot
from .layout import raw, shards, whole
from .statistics import Prediction
from .topology import Topology

__all__ = ["cheapest", "predict"]


def cheapest(predictions: Sequence[Prediction]) -> Prediction:
    """Among equals the first one."""
    return min(predictions, key=lambda one: one.cost)


def predict(kind: str, slots: Sequence[Slot], topology: Topology) -> Prediction:
    """What "gather", "two_phase", "sparse" or "hierarchical" would cost."""
    world = topology.world_size
    if kind == "gather":
        traffic = [[whole(slots).nbytes] * world] * world
        return _prediction(kind, traffic, topology, world - 1)
    sizes = [layout.nbytes for layout in shards(slots, world)]
    if kind == "hierarchical":
        return _hierarchical(slots, sizes, topology)
    # to each owner its shard, and from each owner its answer
    traffic = [[sizes[to] + sizes[rank] for to in range(world)] for rank in range(world)]
    return _prediction(kind, traffic, topology, 2 * (world - 1))


def _hierarchical(slots: Sequence[Slot], sizes: Sequence[int], topology: Topology) -> Prediction:
    """Shards lie so that those which a rank's peers own come one after the other."""
    world, hosts, places = topology.world_size, topology.count, topology.per_host or 1
    traffic = [[0] * world for _ in range(world)]
    dense = [layout.nbytes for layout in raw(slots, places, hosts)]
    for rank in range(world):
        neighbours, peers = topology.neighbours(rank), topology.peers(rank)
        place, host = neighbours.index(rank), topology.hosts[rank]
        own = sizes[place * hosts : (place + 1) * hosts]
        for to, nbytes in zip(neighbours, dense, strict=True):
            traffic[rank][to] += nbytes + sum(own)
        for to, nbytes in zip(peers, own, strict=True):
            traffic[rank][to] += nbytes + own[host]
    return _prediction("hierarchical", traffic, topology, 2 * (places - 1) + 2 * (hosts - 1))


def _prediction(kind: str, traffic: Sequence[Sequence[int]], topology: Topology, messages: int) -> Prediction:
    """From the bytes that each rank has for each; those for itself do not count."""
    sent = [sum(row) - row[rank] for rank, row in enumerate(traffic)]
    links = [0] * topology.count
    for rank, row in enumerate(traffic):
        links[topology.hosts[rank]] += sum(
            nbytes for to, nbytes in enumerate(row) if topology.hosts[to] != topology.hosts[rank]
        )
    return Prediction(kind, max(sent), max(links), messages)
