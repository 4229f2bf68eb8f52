"""The statistics say exactly what was sent, and a step sends what its plan says and nothing else."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from gradwire import FP16, Compressor, Int8, NoCompression, RandomK, SizePolicy, TopK
from gradwire.backends import GradientReducer, Statistics, Transport, run_ranks
from support.listening import Listening, Sent
from support.reducing import COMPRESSORS, SHAPES, ids, metas, one_step

EXCHANGES = ("auto", "gather", "two_phase")
STEPS = 3


def play(compressor: Compressor, exchange: str, transport: Transport) -> tuple[list[list[Sent]], Statistics]:
    """What a rank sent in each step."""
    listening = Listening(transport)
    reducer = GradientReducer(
        compressor, listening, exchange=exchange, bucket_bytes=6000, name=f"{exchange}{type(compressor).__name__}"
    )
    reducer.register(metas(SHAPES))
    steps = []
    for step in range(STEPS):
        listening.sent.clear()
        one_step(reducer, SHAPES, step, donate=step == 1)
        steps.append(list(listening.sent))
        assert reducer.statistics.last.sent_bytes == sum(sent.nbytes for sent in listening.sent)
    return steps, reducer.statistics


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=ids)
def test_sent_bytes_are_what_the_transport_was_given(compressor: Compressor, world_size: int) -> None:
    ranks = run_ranks(world_size, lambda transport: [play(compressor, exchange, transport) for exchange in EXCHANGES])
    ring = Fraction(2 * (world_size - 1), world_size)
    for rank in ranks:
        for number, (steps, statistics) in enumerate(rank):
            assert statistics.total.sent_bytes == sum(sent.nbytes for step in steps for sent in step)
            assert statistics.total.raw_bytes == STEPS * statistics.last.raw_bytes
            assert statistics.last.raw_bytes == int(ring * sum(meta.raw_bytes for meta in metas(SHAPES)))
            assert statistics.last.fp16_bytes == statistics.last.raw_bytes // 2
            assert names(steps) == names(ranks[0][number][0])
            expect_buckets(steps[0], statistics)
            expect_collectives(steps, statistics, world_size)


def expect_buckets(step: list[Sent], statistics: Statistics) -> None:
    """Each bucket's own bytes, and that the buckets carry all tensors."""
    for bucket in statistics.buckets:
        own = [sent for sent in step if sent.name == bucket.name or sent.name.startswith(f"{bucket.name}.")]
        assert bucket.sent_bytes == sum(sent.nbytes for sent in own)
        assert len(own) == {"identity": 0, "two_phase": 2}.get(bucket.exchange, 1)
    assert sum(bucket.tensors for bucket in statistics.buckets) == len(statistics.tensors)
    assert sum(bucket.raw_bytes for bucket in statistics.buckets) == sum(t.raw_bytes for t in statistics.tensors)


def names(steps: list[list[Sent]]) -> list[list[str]]:
    return [[sent.name for sent in step] for step in steps]


def expect_collectives(steps: list[list[Sent]], statistics: Statistics, world_size: int) -> None:
    """One per bucket and phase, named, none twice in a step, the same in every step."""
    for step in steps:
        phases = sum(2 if sent.kind == "all_to_all" else 0 for sent in step) or 0
        single = len({sent.name for sent in step if not sent.name.endswith((".scatter", ".gather"))})
        assert phases // 2 + single == (len(statistics.buckets) if world_size > 1 else 0)
        assert len(step) == phases + single
        assert len({sent.name for sent in step}) == len(step)
        assert all(sent.name for sent in step)
        assert [sent.name for sent in step] == [sent.name for sent in steps[0]]


@pytest.mark.parametrize(("exchange", "collectives"), [("gather", 1), ("two_phase", 2), ("all_reduce", 1)])
def test_a_hundred_tensors_share_one_bucket(exchange: str, collectives: int) -> None:
    shapes = {f"w{number}": (10, 110) for number in range(100)}
    codec = RandomK(ratio=0.1) if exchange == "all_reduce" else Int8()

    def rank_main(transport: Transport) -> None:
        listening = Listening(transport)
        reducer = GradientReducer(codec, listening, exchange=exchange)
        reducer.register(metas(shapes))
        listening.sent.clear()
        one_step(reducer, shapes, 0)
        assert len(listening.sent) == collectives
        assert len(reducer.statistics.buckets) == 1

    run_ranks(2, rank_main)


def test_registration_sends_a_digest_only() -> None:
    def rank_main(transport: Transport) -> None:
        listening = Listening(transport)
        GradientReducer(TopK(), listening).register(metas(SHAPES))
        assert listening.sent == [Sent("all_gather", "gradwire.0.fingerprint", 32)]

    run_ranks(2, rank_main)


def test_two_phase_does_not_grow_with_the_ranks() -> None:
    """Per rank less than twice the payload, and less than an fp16 ring by what int8 saves."""
    shapes = {"w": (128, 256)}

    def rank_main(transport: Transport) -> tuple[int, int]:
        reducer = GradientReducer(Int8(), transport)
        reducer.register(metas(shapes))
        one_step(reducer, shapes, 0)
        return reducer.statistics.last.sent_bytes, reducer.statistics.last.fp16_bytes

    for world_size in (3, 4, 9):
        for sent, fp16 in run_ranks(world_size, rank_main):
            assert sent < 0.53 * fp16


def test_the_account_of_steps() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(TopK(ratio=0.1), transport)
        reducer.register(metas(SHAPES))
        assert reducer.statistics.last.sent_bytes == reducer.statistics.total.sent_bytes == 0
        for step in range(2):
            one_step(reducer, SHAPES, step)
        one = reducer.statistics.last
        reducer.ready("w1", torch.full((40, 37), float("inf")))
        reducer.wait("w1")
        statistics = reducer.statistics
        assert (statistics.steps, statistics.skipped_steps) == (2, 1)
        assert statistics.last.sent_bytes == one.sent_bytes
        reducer.flush()
        reducer.wait("w1")
        statistics = reducer.statistics
        assert (statistics.steps, statistics.skipped_steps) == (3, 1)
        assert statistics.total.sent_bytes == 4 * one.sent_bytes
        assert statistics.total.codec_seconds >= statistics.last.codec_seconds > 0
        assert statistics.total.wait_seconds >= statistics.last.wait_seconds > 0

    run_ranks(2, rank_main)


def test_a_step_that_begins_with_flush_is_counted_once_too() -> None:
    """Means of the step before were left untaken, and nobody looked at the account in between."""

    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(TopK(ratio=0.1), transport)
        reducer.register(metas(SHAPES))
        for _ in range(3):
            reducer.flush()
            reducer.wait("w1")
        statistics = reducer.statistics
        assert statistics.total.sent_bytes == 3 * statistics.last.sent_bytes > 0

    run_ranks(2, rank_main)


@pytest.mark.parametrize(
    ("compressor", "world_size", "summary", "reasons"),
    [
        (FP16(), 2, "compressing 5 of 6 tensors, 100 % of bytes; error feedback off", {"empty": 1}),
        (
            TopK(),
            2,
            "compressing 2 of 6 tensors, 96 % of bytes; error feedback on",
            {"empty": 1, "below min_numel=1024": 3},
        ),
        (TopK(error_feedback=False), 2, "compressing 2 of 6 tensors, 96 % of bytes; error feedback off", None),
        (TopK(), 1, "compressing 0 of 6 tensors, 0 % of bytes; error feedback off", {"one process": 6}),
        (
            SizePolicy(TopK(ratio=1.0), min_numel=0, min_ndim=0),
            2,
            "compressing 0 of 6 tensors, 0 % of bytes; error feedback off",
            None,
        ),
        (NoCompression(), 2, "compressing 0 of 6 tensors, 0 % of bytes; error feedback off", None),
    ],
)
def test_the_summary_says_what_is_compressed_and_the_reasons_why_not(
    compressor: Compressor, world_size: int, summary: str, reasons: dict[str, int] | None
) -> None:
    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(compressor, transport)
        reducer.register(metas(SHAPES))
        assert reducer.statistics.summary() == summary
        assert reasons is None or reducer.statistics.dense_reasons() == reasons

    run_ranks(world_size, rank_main)


@pytest.mark.parametrize("exchange", ["all_reduce", "gather", "two_phase"])
def test_values_out_of_range_are_counted_wherever_a_tensor_is_cut(exchange: str) -> None:
    """Five values in each of two steps, all on rank 0."""

    def rank_main(transport: Transport) -> int:
        reducer = GradientReducer(FP16(), transport, exchange=exchange)
        reducer.register(metas({"w": (10, 10), "v": (7,)}))
        for _ in range(2):
            w, v = torch.zeros(10, 10), torch.zeros(7)
            w.view(-1)[[0, 40, 99]] = 1e6 if transport.rank == 0 else 0.0
            v[[1, 6]] = -1e6 if transport.rank == 0 else 0.0
            reducer.ready("w", w)
            reducer.ready("v", v)
            reducer.wait("w")
        return reducer.statistics.saturated

    assert run_ranks(3, rank_main) == [10, 0, 0]
