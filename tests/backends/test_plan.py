"""Which tensor travels in which bucket, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gradwire import BF16, FP16, Compressor, ConfigError, Int8, NoCompression, OneBit, RandomK, TopK, with_defaults
from gradwire.backends import LocalTransport, Transport
from gradwire.backends.bucket import MAX_SLOTS, Bucket
from gradwire.backends.plan import Planner
from hypothesis import given
from hypothesis import strategies as st
from support.reducing import Shapes, metas

LARGE: Shapes = {"w": (64, 64)}
#: so that a second round is worth its messages
LONG: Shapes = {"w": (1000, 1000)}


class Poor(LocalTransport):
    """Adds fp32 only, as a transport without 16-bit sums."""

    sum_dtypes = frozenset({torch.float32})


def transport(world_size: int, kind: type[LocalTransport] = LocalTransport) -> Transport:
    return kind.group(world_size)[0]


def plan(
    compressor: Compressor,
    shapes: Shapes,
    world_size: int = 3,
    exchange: str = "auto",
    bucket_bytes: int = 1 << 20,
    kind: type[LocalTransport] = LocalTransport,
    dtype: torch.dtype = torch.float32,
) -> list[Bucket]:
    planner = Planner(with_defaults(compressor), transport(world_size, kind), exchange, bucket_bytes)
    return planner.buckets([metas(shapes, dtype)], "p")


@pytest.mark.parametrize(
    ("compressor", "world_size", "lane"),
    [
        (NoCompression(), 2, "all_reduce float32"),
        (FP16(), 3, "all_reduce float16"),
        (BF16(), 2, "all_reduce bfloat16"),
        (RandomK(ratio=0.1), 3, "all_reduce float32"),
        # the rounding of a 16-bit sum on the wire would never be fed back
        (FP16(error_feedback=True), 2, "gather uint8"),
        (BF16(error_feedback=True), 3, "two_phase uint8"),
        (TopK(ratio=0.1), 2, "gather uint8"),
        (TopK(ratio=0.1), 3, "sparse uint8"),
        (TopK(ratio=0.1), 9, "sparse uint8"),
        (OneBit(), 2, "gather uint8"),
        (OneBit(), 3, "two_phase uint8"),
        (Int8(), 9, "two_phase uint8"),
        (Int8(), 1, "identity uint8"),
    ],
    ids=str,
)
def test_auto_chooses_by_payload_and_world_size(compressor: Compressor, world_size: int, lane: str) -> None:
    (bucket,) = plan(compressor, LONG, world_size)
    assert f"{bucket.lane.kind} {str(bucket.lane.dtype).removeprefix('torch.')}" == lane


@pytest.mark.parametrize("compressor", [NoCompression(), OneBit(), FP16(), RandomK(ratio=0.1)], ids=str)
def test_only_what_chooses_entries_can_choose_again(compressor: Compressor) -> None:
    assert [bucket.lane.kind for bucket in plan(TopK(), LARGE, exchange="sparse")] == ["sparse"]
    with pytest.raises(ConfigError, match=r"chooses none: use exchange='auto' or 'two_phase', or TopK"):
        plan(compressor, LARGE, exchange="sparse")


@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
@pytest.mark.parametrize("compressor", [NoCompression(), FP16(), RandomK(ratio=0.1), TopK(ratio=0.1)], ids=str)
def test_an_exchange_that_was_asked_for_is_taken(compressor: Compressor, exchange: str) -> None:
    assert [bucket.lane.kind for bucket in plan(compressor, LARGE, exchange=exchange)] == [exchange]


def test_what_the_transport_cannot_add_travels_as_bytes() -> None:
    assert [bucket.lane.kind for bucket in plan(FP16(), LONG, kind=Poor)] == ["two_phase"]
    with pytest.raises(ConfigError, match=r"local cannot add torch.float16: use exchange='auto'"):
        plan(FP16(), LARGE, exchange="all_reduce", kind=Poor)


def test_16_bit_gradients_without_compression_are_not_added_in_16_bits() -> None:
    assert [bucket.lane.kind for bucket in plan(NoCompression(), LONG, dtype=torch.bfloat16)] == ["two_phase"]


def test_dense_tensors_ride_with_compressed_ones() -> None:
    """Unless those are summed in another dtype, or there are none."""
    shapes = {"w": (64, 64), "b": (64,), "v": (64, 64), "nothing": (0,)}
    (bucket,) = plan(TopK(ratio=0.1), shapes)
    assert [slot.meta.name for slot in bucket.slots] == list(shapes)
    assert [slot.reason is None for slot in bucket.slots] == [True, False, True, False]
    (summed,) = plan(RandomK(ratio=0.1), shapes)
    assert summed.lane.kind == "all_reduce"
    (dense,) = plan(TopK(ratio=0.1), {"b": (64,), "c": (63,)})
    assert dense.lane.kind == "all_reduce"


@given(
    st.lists(st.integers(0, 5000), max_size=30),
    st.integers(1, 20000),
    st.sampled_from([NoCompression(), TopK(ratio=0.1), RandomK(ratio=0.1), FP16()]),
    st.integers(1, 4),
)
def test_every_tensor_has_one_place_and_buckets_are_closed_when_full(
    sizes: list[int], bucket_bytes: int, compressor: Compressor, world_size: int
) -> None:
    shapes = {f"t{number}": (2, size) for number, size in enumerate(sizes)}
    buckets = plan(compressor, shapes, world_size, bucket_bytes=bucket_bytes)
    placed = [slot.meta.name for bucket in buckets for slot in bucket.slots]
    assert sorted(placed) == sorted(shapes)
    assert [bucket.name for bucket in buckets] == [f"p.{number}" for number in range(len(buckets))]
    for bucket in buckets:
        *before, _ = (slot.meta.raw_bytes for slot in bucket.slots)
        assert sum(before) < bucket_bytes
        order = [int(slot.meta.name[1:]) for slot in bucket.slots]
        assert order == sorted(order)


def test_groups_get_buckets_of_their_own_and_numbers_go_on() -> None:
    planner = Planner(NoCompression(), transport(2), "auto", 1 << 20)
    one, two = metas({"a": (3,), "b": (4,)}), metas({"c": (5,)})
    buckets = planner.buckets([one, two], "p", first=7)
    assert [(bucket.name, [slot.meta.name for slot in bucket.slots]) for bucket in buckets] == [
        ("p.7", ["a", "b"]),
        ("p.8", ["c"]),
    ]


def test_a_header_can_count_a_buckets_tensors() -> None:
    one = metas({"t": (1,)})[0]
    many = [replace(one, name=f"t{number}") for number in range(MAX_SLOTS + 2)]
    buckets = Planner(NoCompression(), transport(2), "auto", 1 << 40).buckets([many], "p")
    assert [len(bucket.slots) for bucket in buckets] == [MAX_SLOTS, 2]
