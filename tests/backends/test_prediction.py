"""What exchanges are expected to cost, what they do cost, and which one is taken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gradwire import Compressor, Int8, OneBit, TensorMeta, TopK
from gradwire.backends import GradientReducer, Transport, run_ranks
from gradwire.backends.bucket import Slot
from gradwire.backends.layout import raw, shards
from gradwire.backends.prediction import predict
from gradwire.backends.topology import Topology, learn
from hypothesis import given
from hypothesis import strategies as st
from support.listening import Listening
from support.reducing import Shapes, everything, ids, metas, one_step

LARGE: Shapes = {"w": (512, 1000), "b": (1000,)}


@pytest.mark.parametrize("exchange", ["gather", "two_phase", "sparse"])
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_the_rank_that_sends_most_sends_what_was_predicted(exchange: str, world_size: int) -> None:
    codec = TopK(ratio=0.03, values="int8") if exchange == "sparse" else Int8(block=64)

    def rank_main(transport: Transport) -> tuple[int, GradientReducer]:
        listening = Listening(transport)
        reducer = GradientReducer(codec, listening, exchange=exchange)
        reducer.register(metas(LARGE))
        listening.sent.clear()
        one_step(reducer, LARGE, 0)
        return sum(sent.nbytes for sent in listening.sent), reducer

    ranks = run_ranks(world_size, rank_main)
    (bucket,) = ranks[0][1].statistics.buckets
    (prediction,) = bucket.predictions
    assert (bucket.exchange, prediction.exchange) == (exchange, exchange)
    assert max(sent for sent, _ in ranks) == prediction.sent_bytes == prediction.link_bytes
    assert prediction.messages == (world_size - 1) * (1 if exchange == "gather" else 2)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_top_k_sends_hardly_more_on_eight_ranks_than_on_two(world_size: int) -> None:
    """1.75 times; gathering would send seven times as much."""
    shapes = {"w": (1024, 1024)}

    def rank_main(transport: Transport) -> int:
        reducer = GradientReducer(TopK(), transport)
        reducer.register(metas(shapes))
        one_step(reducer, shapes, 0)
        return reducer.statistics.last.sent_bytes

    two = TopK().nbytes(metas(shapes)[0])
    for sent in run_ranks(world_size, rank_main):
        assert sent <= 1.8 * two


@pytest.mark.parametrize(
    ("codec", "shapes", "hosts", "exchange"),
    [
        (TopK(), LARGE, (0, 1, 2, 3), "sparse"),
        (TopK(), {"w": (40, 40)}, (0, 1, 2, 3), "gather"),
        (TopK(), LARGE, (0, 1), "gather"),
        (OneBit(), LARGE, (0, 1, 2, 3), "two_phase"),
        (OneBit(), {"w": (40, 40)}, (0, 1, 2, 3), "gather"),
        (Int8(), LARGE, (0, 0, 1, 1), "hierarchical"),
        (Int8(), LARGE, (0, 0, 0, 1), "two_phase"),
        (OneBit(), {"w": (40, 40)}, (0, 0, 1, 1), "gather"),
    ],
    ids=str,
)
def test_the_cheapest_is_taken(codec: Compressor, shapes: Shapes, hosts: Sequence[int], exchange: str) -> None:
    def rank_main(transport: Transport) -> GradientReducer:
        reducer = GradientReducer(codec, transport)
        reducer.register(metas(shapes))
        return reducer

    for reducer in run_ranks(len(hosts), rank_main, hosts=hosts):
        bucket = reducer.statistics.buckets[0]
        assert bucket.exchange == exchange
        costs = {one.exchange: one.cost for one in bucket.predictions}
        assert len(costs) >= 2
        assert costs[exchange] == min(costs.values())


SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=8)
CODECS = st.sampled_from([TopK(ratio=0.1), Int8(block=16), OneBit(block=64)])


@given(sizes=SIZES, codec=CODECS, count=st.integers(1, 9))
def test_shards_cover_every_element_once_and_are_alike(sizes: list[int], codec: Compressor, count: int) -> None:
    """In bytes, but for what blocks, headers and chunks of places cost."""
    slots = [slot(f"w{number}", size, codec) for number, size in enumerate(sizes)]
    layouts = shards(slots, count)
    assert len(layouts) == count
    for number, size in enumerate(sizes):
        pieces = [piece for layout in layouts for piece in layout.of_slot(number)]
        edges = [0, *(piece.high for piece in pieces)]
        assert [piece.low for piece in pieces] == edges[:-1]
        assert edges[-1] == size
    whole = sum(one.codec.nbytes(one.meta) for one in slots)
    for layout in layouts:
        assert layout.nbytes <= whole / count + 64 * (1 + len(layout.pieces))


@given(sizes=SIZES, codec=CODECS, places=st.integers(1, 4), hosts=st.integers(1, 4))
def test_runs_within_a_host_are_made_of_whole_shards(
    sizes: list[int], codec: Compressor, places: int, hosts: int
) -> None:
    slots = [slot(f"w{number}", size, codec) for number, size in enumerate(sizes)]
    fine, coarse = shards(slots, places * hosts), raw(slots, places, hosts)
    for place, layout in enumerate(coarse):
        own = [piece for shard in fine[place * hosts : (place + 1) * hosts] for piece in shard.pieces]
        covered = {(piece.slot, element) for piece in own for element in range(piece.low, piece.high)}
        assert {(one.slot, element) for one in layout.pieces for element in range(one.low, one.high)} == covered


def slot(name: str, size: int, codec: Compressor) -> Slot:
    return Slot(TensorMeta(name=name, shape=(size,), dtype=torch.float32), everything(codec), None)


def test_prediction_counts_what_leaves_a_host() -> None:
    slots, hosts = [slot("w", 1 << 20, Int8())], Topology((0, 0, 1, 1))
    flat, levels, gather = (predict(kind, slots, hosts) for kind in ("two_phase", "hierarchical", "gather"))
    apart = predict("two_phase", slots, Topology.apart(4))
    assert flat.sent_bytes == apart.sent_bytes
    assert flat.link_bytes == pytest.approx(apart.link_bytes * 4 / 3, rel=1e-3)
    assert levels.link_bytes == pytest.approx(flat.link_bytes / 2, rel=1e-3)
    assert gather.link_bytes == pytest.approx(flat.link_bytes * 2, rel=1e-3)


@given(keys=st.lists(st.sampled_from([None, 3, 7, 1]), min_size=1, max_size=7))
def test_ranks_find_out_where_they_are(keys: list[int | None]) -> None:
    def rank_main(transport: Transport) -> Topology:
        transport.host = keys[transport.rank]
        return learn(transport, "hosts", 10)

    topologies = run_ranks(len(keys), rank_main)
    assert len(set(topologies)) == 1
    topology = topologies[0]
    for rank, key in enumerate(keys):
        alike = [other for other, theirs in enumerate(keys) if other == rank or (key is not None and theirs == key)]
        assert topology.neighbours(rank) == alike
        if topology.per_host is not None:
            peers = topology.peers(rank)
            assert rank in peers
            assert sorted(topology.hosts[peer] for peer in peers) == list(range(topology.count))


@pytest.mark.parametrize("codec", [TopK(ratio=0.1), TopK(ratio=0.2, values="fp16")], ids=ids)
def test_what_is_not_chosen_again_is_owed(codec: Compressor) -> None:
    """A rank's choice that does not reach the common result is not lost: the owner of its place keeps it."""

    def rank_main(transport: Transport) -> tuple[torch.Tensor, torch.Tensor]:
        reducer = GradientReducer(everything(codec), transport, exchange="sparse")
        reducer.register(metas({"w": (40, 50)}))
        grad = torch.zeros(40, 50)
        grad.view(-1)[transport.rank :: 4] = 1.0 + torch.arange(500) / 1000  # no two ranks have an element in common
        reducer.ready("w", grad)
        return reducer.wait("w"), reducer.pending("w")

    ranks = run_ranks(4, rank_main)
    given_, owed = ranks[0][0], torch.stack([pending for _, pending in ranks]).sum(0)
    everywhere = torch.zeros(2000)
    for rank in range(4):
        everywhere[rank::4] = (1.0 + torch.arange(500) / 1000) / 4
    assert int(given_.count_nonzero()) <= (codec.entries(metas({"w": (40, 50)})[0]) or 0) + 4
    torch.testing.assert_close(given_.view(-1) + owed.view(-1), everywhere, rtol=1e-5, atol=1e-6)
