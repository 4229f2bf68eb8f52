"""The exchange for several ranks per host: first inside each host, then one shard per rank between hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..compressors import NoCompression, State
from .bucket import Bucket
from .exchange import Clock, Exchange, Flight, Source, by_slot, flat_source
from .layout import Piece, raw, shards
from .topology import Topology
from .transport import Transport

__all__ = ["Hierarchical"]

_RAW = NoCompression()


class Hierarchical(Exchange):
    """A host's link carries 2c(H-1)/H bytes for H hosts, however many ranks a host has; four rounds.

    Words: *neighbours* are the ranks of one host; *peers* are those with the same place among their neighbours.
    Inside a host gradients travel as they are, and each rank averages a run of the bucket. What the peers of a run
    have is combined in two phases, as in `TwoPhase`. Then neighbours hand on what they got. So a residual is kept for
    a run only, and belongs to a host.

    Args:
        topology: where the ranks are; as many on each host.
    """

    def __init__(
        self, bucket: Bucket, transport: Transport, digest: bytes, *, guarded: bool, topology: Topology
    ) -> None:
        super().__init__(bucket, transport, digest, guarded=guarded)
        rank, self._world = transport.rank, transport.world_size
        self._neighbours, self._peers = topology.neighbours(rank), topology.peers(rank)
        self._place, self._host = self._neighbours.index(rank), topology.hosts[rank]
        hosts, places = len(self._peers), len(self._neighbours)
        self._dense = raw(bucket.slots, places, hosts)
        #: those of the peers of one place follow each other
        self._layouts = shards(bucket.slots, self._world)
        self._sizes = [layout.nbytes for layout in self._layouts]
        run = slice(self._place * hosts, (self._place + 1) * hosts)
        self._run, self._run_sizes = self._layouts[run], self._sizes[run]
        self._kept = {piece.slot: piece for piece in self._dense[self._place].pieces}
        self._own = {piece.slot: piece for piece in self._run[self._host].pieces}
        first = [topology.hosts.index(host) for host in range(hosts)]
        homes = [topology.neighbours(one) for one in first]
        #: by shard, who answers for it
        self._owners = [homes[host][place] for place in range(places) for host in range(hosts)]
        self._gradients, self._message, self._answer = (torch.empty(0, dtype=torch.uint8) for _ in range(3))

    @property
    def phases(self) -> int:
        return 4

    @property
    def keeps_runs(self) -> bool:
        return True

    @property
    def sent_bytes(self) -> int:
        dense = sum(layout.nbytes for layout in self._dense) - self._dense[self._place].nbytes
        own, run = self._run_sizes[self._host], sum(self._run_sizes)
        return dense + (run - own) + own * (len(self._peers) - 1) + run * (len(self._neighbours) - 1)

    @property
    def holders(self) -> int:
        return len(self._peers)

    def own_range(self, slot: int) -> slice:
        return _range(self._own.get(slot))

    def kept_range(self, slot: int) -> slice:
        return _range(self._kept.get(slot))

    # Inside the host.

    def start(self, sources: Sequence[Source], clock: Clock) -> Flight:
        flight = Flight(clock, sources, states=[source.state for source in sources])
        sizes = [layout.nbytes for layout in self._dense]
        self._gradients = self._zeros(self._gradients, sum(sizes), sources[0].grad.device)
        messages = self._gradients.split(sizes)
        for layout, message in zip(self._dense, messages, strict=True):
            for piece in layout.pieces:
                source = flat_source(sources[piece.slot], self.bucket.slots[piece.slot].meta)
                self._encode(flight, source, _RAW, [piece], [message], clock)
            self._seal(flight, message)
        received = [sizes[self._place]] * len(sizes)
        self._send(flight, self._gradients, self._neighbours, sizes, received, "home")
        return flight

    def advance(self, flight: Flight, timeout: float) -> None:
        received, turn = flight.wait(timeout), (self._between_hosts, self._answer_peers, self._hand_on)
        turn[flight.phase - 1](flight, received)

    def _between_hosts(self, flight: Flight, received: torch.Tensor) -> None:
        """Average this rank's run over the host, and encode a shard of it for each peer."""
        messages = list(received.view(len(self._neighbours), -1))
        self._message = self._zeros(self._message, sum(self._run_sizes), received.device)
        targets = self._message.split(self._run_sizes)
        self._guarded(flight, messages, self._neighbours, lambda: self._encode_run(flight, messages, targets))
        for target in targets:
            self._seal(flight, target)
        own = [self._run_sizes[self._host]] * len(self._peers)
        self._send(flight, self._message, self._peers, self._run_sizes, own, "scatter")

    def _answer_peers(self, flight: Flight, received: torch.Tensor) -> None:
        """Average this rank's shard over the hosts, and encode it again for all peers."""
        messages = list(received.view(len(self._peers), -1))
        self._answer = self._zeros(self._answer, self._run_sizes[self._host], received.device)
        self._guarded(flight, messages, self._peers, lambda: self._encode_answer(flight, messages))
        self._seal(flight, self._answer)
        own, many = self._run_sizes[self._host], len(self._peers)
        self._send(flight, self._answer.repeat(many), self._peers, [own] * many, self._run_sizes, "gather")

    def _hand_on(self, flight: Flight, received: torch.Tensor) -> None:
        """Give the neighbours the answers for this rank's run."""
        hosts, many = len(self._peers), len(self._neighbours)
        runs = [sum(self._sizes[place * hosts : (place + 1) * hosts]) for place in range(many)]
        sizes = [runs[self._place]] * many
        self._send(flight, received.repeat(many), self._neighbours, sizes, runs, "share")

    def finish(self, flight: Flight, timeout: float) -> None:
        flight.result = flight.wait(timeout)
        flight.messages = flight.result.split(self._sizes)
        self._open(flight, flight.messages, self._owners)

    def mean(self, flight: Flight, slot: int, out: torch.Tensor, scale: float) -> None:
        for layout, answer in zip(self._layouts, flight.messages, strict=True):
            for piece in layout.of_slot(slot):
                self._sum(flight, piece, [answer], out[piece.low : piece.high], scale)

    # What the phases have in common.

    def _send(
        self,
        flight: Flight,
        message: torch.Tensor,
        ranks: Sequence[int],
        sizes: Sequence[int],
        received: Sequence[int],
        phase: str,
    ) -> None:
        """Parts of a message to some ranks only, and parts of so many bytes from them."""
        to, by = [0] * self._world, [0] * self._world
        for rank, there, here in zip(ranks, sizes, received, strict=True):
            to[rank], by[rank] = there, here
        flight.work = self.transport.all_to_all(message, to, by, f"{self.bucket.name}.{phase}")

    def _guarded(
        self, flight: Flight, messages: Sequence[torch.Tensor], ranks: Sequence[int], encode: Callable[[], None]
    ) -> None:
        """Encode what came, if it is sound. An error is raised when the step is settled: others wait for this rank."""
        try:
            self._open(flight, messages, ranks)
            if flight.finite and not flight.failed:
                encode()
        except Exception as error:
            flight.error = flight.error or error
        # who hears of it through this rank must not read its payloads; whose fault it was all hear in the end
        flight.finite &= not flight.failed and flight.error is None

    def _encode_run(self, flight: Flight, messages: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
        layouts = [by_slot(layout, len(self.bucket.slots)) for layout in self._run]
        for slot, kept in self._kept.items():
            mean = torch.zeros(kept.meta.numel, device=messages[0].device)
            for message in messages:
                _RAW.decompress_add(
                    kept.payload(message), flight.clock.context(kept.meta), mean, 1 / len(self._neighbours)
                )
            pairs = [(piece, target) for slots, target in zip(layouts, targets, strict=True) for piece in slots[slot]]
            source = Source(mean, state=flight.sources[slot].state, scratch=mean)
            flight.states[slot] = self._encode_from(flight, source, slot, kept.low, pairs, flight.clock)

    def _encode_answer(self, flight: Flight, messages: Sequence[torch.Tensor]) -> None:
        for piece in self._run[self._host].pieces:
            mean = torch.empty(piece.meta.numel, device=messages[0].device)
            self._sum(flight, piece, messages, mean, 1 / len(self._peers))
            source = Source(mean, state=flight.sources[piece.slot].server, scratch=mean)
            clock, pairs = flight.clock.of_server(self._world), [(piece, self._answer)]
            flight.server[piece.slot] = self._encode_from(flight, source, piece.slot, piece.low, pairs, clock)

    def _encode_from(
        self,
        flight: Flight,
        source: Source,
        slot: int,
        first: int,
        pairs: Sequence[tuple[Piece, torch.Tensor]],
        clock: Clock,
    ) -> State:
        """Encode pieces of a vector that begins with the element `first` of its tensor."""
        pieces, targets = [piece for piece, _ in pairs], [target for _, target in pairs]
        return self._encode(flight, source, self.bucket.slots[slot].codec, pieces, targets, clock, first)


def _range(piece: Piece | None) -> slice:
    return slice(0, 0) if piece is None else slice(piece.low, piece.high)
