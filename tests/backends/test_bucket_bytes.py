"""What flat buckets cost: the bytes and collectives that the transport was given, and memory."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from gradwire import Compressor, NoCompression, OneBit, RandomK, TopK
from gradwire.backends import BucketReducer, Part, Statistics, Transport, run_ranks
from gradwire.compressors.wire import HEADER_BYTES
from support.allocating import Allocations
from support.bucketing import even_bounds, whole
from support.listening import Listening, Sent
from support.reducing import COMPRESSORS, everything, ids

WHOLE = whole()
ELEMENTS = sum(part.numel for part in WHOLE.parts)
#: bytes of the digest by which ranks compare a call
COMPARED = 8


def play(compressor: Compressor, exchange: str, transport: Transport) -> tuple[list[list[Sent]], Statistics]:
    """What was sent in each of two steps of four calls; the first one makes four plans."""
    listening = Listening(transport)
    reducer = BucketReducer(compressor, listening, exchange=exchange, name=f"{exchange}{type(compressor).__name__}")
    bounds = even_bounds(WHOLE.numel, transport.world_size)
    out = torch.empty(bounds[transport.rank + 1] - bounds[transport.rank])
    steps = []
    for step in range(2):
        listening.sent.clear()
        for exact in (False, True):
            reducer.all_reduce(WHOLE.filled(transport.rank, step), WHOLE.parts, exact=exact)
            reducer.reduce_scatter(WHOLE.filled(transport.rank, step), WHOLE.parts, bounds, out, exact=exact)
        reducer.commit()
        steps.append(list(listening.sent))
    return steps, reducer.statistics


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("exchange", ["auto", "gather", "two_phase"])
def test_sent_bytes_are_what_the_transport_was_given(exchange: str, world_size: int) -> None:
    ranks = run_ranks(
        world_size, lambda transport: [play(compressor, exchange, transport) for compressor in COMPRESSORS]
    )
    ring = Fraction(world_size - 1, world_size)
    for rank in ranks:
        for number, (steps, statistics) in enumerate(rank):
            first, second = steps
            assert first == second  # a bucket that is known costs as much as a new one
            comparing = [sent for sent in second if sent.name.endswith(".fingerprint")]
            assert [sent.nbytes for sent in comparing] == [COMPARED * (world_size - 1)] * (4 if world_size > 1 else 0)
            buckets = sum(bucket.sent_bytes for bucket in statistics.buckets)
            assert buckets == sum(sent.nbytes for sent in second if sent not in comparing)
            assert statistics.last.sent_bytes == buckets + 4 * COMPARED * (world_size - 1)
            assert statistics.total.sent_bytes == 2 * statistics.last.sent_bytes
            calls = 2 * int(2 * ring * 4 * ELEMENTS) + 2 * int(ring * 4 * ELEMENTS)
            assert statistics.last.raw_bytes == calls
            assert abs(statistics.last.fp16_bytes - calls / 2) <= 2
            assert [sent.name for sent in second] == [sent.name for sent in ranks[0][number][0][1]]
            assert len({sent.name for sent in second}) == len(second) - max(0, len(comparing) - 1)


@pytest.mark.parametrize(
    ("compressor", "exchange", "kinds"),
    [
        (TopK(ratio=0.1), "gather", ["all_gather"]),
        (OneBit(), "two_phase", ["all_to_all", "all_gather"]),
        (RandomK(ratio=0.1), "auto", ["all_reduce"]),
        (NoCompression(), "auto", ["all_reduce"]),
    ],
    ids=ids,
)
def test_a_hundred_tensors_need_no_more_collectives_than_one(
    compressor: Compressor, exchange: str, kinds: list[str]
) -> None:
    large = whole({f"w{number}": (32, 33) for number in range(100)})

    def rank_main(transport: Transport) -> None:
        listening = Listening(transport)
        reducer = BucketReducer(compressor, listening, exchange=exchange)
        bounds = even_bounds(large.numel, transport.world_size)
        out = torch.empty(bounds[transport.rank + 1] - bounds[transport.rank])
        for _ in range(2):
            listening.sent.clear()
            reducer.all_reduce(large.filled(transport.rank, 0), large.parts)
            reducer.reduce_scatter(large.filled(transport.rank, 0), large.parts, bounds, out)
        assert [sent.kind for sent in listening.sent] == ["all_gather", *kinds, "all_gather", "all_to_all"]
        assert not listening.open

    run_ranks(3, rank_main)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_scatter_sends_each_owner_its_share_and_a_header(world_size: int) -> None:
    """The 1-bit payload of 4096 values in blocks of 2048, or a header where it owns nothing; and the call's digest."""
    parts = [Part(f"w{rank}", (64, 64), 4096 * rank, 4096) for rank in range(world_size)]
    share = HEADER_BYTES + 4096 // 8 + 4 * 2

    def rank_main(transport: Transport) -> tuple[int, int]:
        reducer = BucketReducer(OneBit(), transport)
        flat = torch.ones(4096 * world_size)
        reducer.reduce_scatter(flat, parts, [4096 * rank for rank in range(world_size + 1)], torch.empty(4096))
        reducer.commit()
        even = reducer.statistics.last.sent_bytes
        out = torch.empty(0 if transport.rank else len(flat))
        reducer.reduce_scatter(flat, parts, [0] + [len(flat)] * world_size, out)
        reducer.commit()
        return even, reducer.statistics.last.sent_bytes

    everything_once = HEADER_BYTES + world_size * (4096 // 8 + 4 * 2)
    for rank, (even, one) in enumerate(run_ranks(world_size, rank_main)):
        assert even == (world_size - 1) * (COMPARED + share)
        assert one == (world_size - 1) * (COMPARED + HEADER_BYTES) + (everything_once - HEADER_BYTES if rank else 0)


def test_the_account_says_what_travels_how() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(TopK(ratio=0.1), transport)
        parts = [Part("w", (64, 64), 0, 4096), Part("b", (64,), 4100, 64), Part("u", (64, 64), 4200, 100, 50)]
        flat = torch.ones(4300)
        reducer.all_reduce(flat, parts)
        reducer.all_reduce(flat, parts, exact=True)
        reducer.reduce_scatter(flat, parts, [0, 4300, 4300, 4300], torch.empty(4300 if transport.rank == 0 else 0))
        statistics = reducer.statistics
        assert [(one.name, one.numel, one.dense_reason) for one in statistics.tensors] == [
            ("w", 4096, None),
            ("b", 64, "below min_numel=1024"),
            ("u[50:150]", 100, None),
        ]
        assert [(one.exchange, one.tensors, one.raw_bytes) for one in statistics.buckets] == [
            ("gather", 3, 4 * 4260),
            ("all_reduce", 3, 4 * 4260),
            ("reduce_scatter", 3, 4 * 4260),
        ]
        assert statistics.summary() == "compressing 2 of 3 tensors, 98 % of bytes; error feedback on"
        assert statistics.last.sent_bytes == 0 < statistics.total.sent_bytes

    run_ranks(3, rank_main)


@pytest.mark.parametrize("compressor", [OneBit(), RandomK(ratio=0.01)], ids=ids)
@pytest.mark.parametrize("call", ["gather", "two_phase", "reduce_scatter"])
def test_a_call_makes_no_more_than_new_residuals_of_the_buckets_size(compressor: Compressor, call: str) -> None:
    """Nothing grows with the ranks: no tensor is larger than one part's residual, and few are as large."""
    shape = (1024, 1024)
    parts = [Part(f"w{number}", shape, number << 20, 1 << 20) for number in range(2)]

    def rank_main(transport: Transport) -> tuple[int, int]:
        reducer = BucketReducer(
            everything(compressor), transport, exchange="auto" if call == "reduce_scatter" else call
        )
        bounds = even_bounds(2 << 20, transport.world_size)
        out = torch.empty(bounds[1])
        flat = torch.ones(2 << 20)
        allocations = Allocations()
        for _ in range(2):
            with allocations:
                if call == "reduce_scatter":
                    reducer.reduce_scatter(flat, parts, bounds, out)
                else:
                    reducer.all_reduce(flat, parts)
            reducer.commit()
        return allocations.largest, allocations.count(4 << 20)

    for largest, count in run_ranks(4, rank_main):
        assert largest <= 4 << 20
        assert count <= 2 * 2
