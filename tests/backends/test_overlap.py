"""A thread of the reducer's goes on with a step while gradients still come: the same results, and sooner."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass, field

import pytest
import torch
from gradwire import (
    Compressor,
    Context,
    Int8,
    NoCompression,
    OneBit,
    State,
    TopK,
)
from gradwire.backends import Transport, registry, run_ranks
from gradwire.compressors import kernels
from gradwire.compressors.base import Encoded
from support.listening import Listening
from support.overlapping import FOUR, HOSTS, eventually, reducer_of, threads
from support.reducing import (
    COMPRESSORS,
    SHAPES,
    assert_ranks_equal,
    gradient,
    ids,
    one_step,
)
from support.truncating import Truncated


@pytest.fixture(autouse=True)
def _threads_for_little_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "WORTH_A_THREAD", 1)


# The same results.


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("exchange", ["auto", "gather", "two_phase", "hierarchical"])
@pytest.mark.parametrize("codec", COMPRESSORS, ids=ids)
def test_it_changes_no_bit(codec: Compressor, exchange: str, ordered: bool) -> None:
    def rank_main(transport: Transport) -> None:
        reducers = [
            reducer_of(transport, codec, SHAPES, overlap=overlap, exchange=exchange) for overlap in (True, False)
        ]
        for step in range(3):
            with_thread, without = (one_step(reducer, SHAPES, step, donate=step == 1) for reducer in reducers)
            assert_ranks_equal([[with_thread], [without]])

    run_ranks(4, rank_main, ordered=ordered, hosts=HOSTS)


def test_ranks_whose_gradients_come_in_other_orders_agree() -> None:
    """As with Horovod, whose collectives go by names; and ranks may be slow at different times."""
    orders = [list("abcd"), list("dcba"), list("badc"), list("cdab")]

    def rank_main(transport: Transport) -> list[dict[str, torch.Tensor]]:
        reducer, means = reducer_of(transport, TopK(ratio=0.1), exchange="sparse"), []
        for step in range(5):
            for number, name in enumerate(orders[transport.rank]):
                time.sleep(0.005 * ((number + step + transport.rank) % 3))
                reducer.ready(name, gradient(name, FOUR[name], transport.rank, step))
            means.append({name: reducer.wait(name) for name in FOUR})
        return means

    assert_ranks_equal(run_ranks(4, rank_main, ordered=False))


def test_a_missing_gradient_counts_as_zeros() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = reducer_of(transport, NoCompression(), exchange="two_phase")
        for name in list(FOUR)[: 3 + transport.rank % 2]:
            reducer.ready(name, torch.ones(FOUR[name]))
        assert [float(reducer.wait(name).mean()) for name in FOUR] == [1.0, 1.0, 1.0, 0.5]

    run_ranks(4, rank_main)


# Sooner.


@dataclass(frozen=True, kw_only=True)
class Noting(Truncated):
    """Notes the thread that encodes, and takes its time."""

    threads: list[str] = field(default_factory=list, repr=False, compare=False)
    pause: float = 0.0

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        self.threads.append(threading.current_thread().name)
        time.sleep(self.pause)
        return super()._encode(feed, state, ctx, payload)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("exchange", "phases"), [("gather", 1), ("two_phase", 2), ("hierarchical", 4)])
def test_later_phases_start_before_the_last_gradient_has_come(exchange: str, phases: int, ordered: bool) -> None:
    shapes = {f"w{number}": (40, 40) for number in range(12)}
    *early, last = shapes

    def rank_main(inner: Transport) -> None:
        transport = Listening(inner)
        reducer = reducer_of(transport, OneBit(block=64), shapes, exchange=exchange)
        transport.sent.clear()
        for name in early:
            reducer.ready(name, gradient(name, shapes[name], inner.rank, 0))
        assert eventually(lambda: len([sent for sent in transport.sent if sent.name.startswith("rTrue.0")]) == phases)
        reducer.ready(last, gradient(last, shapes[last], inner.rank, 0))
        for name, shape in shapes.items():
            assert reducer.wait(name).shape == shape

    run_ranks(4, rank_main, ordered=ordered, hosts=HOSTS)


def test_another_thread_encodes_all_but_what_comes_last() -> None:
    def rank_main(transport: Transport) -> None:
        codec = Noting()
        reducer = reducer_of(transport, codec, exchange="gather", name="n")
        *early, last = FOUR
        for name in early:
            reducer.ready(name, gradient(name, FOUR[name], transport.rank, 0))
        assert eventually(lambda: len(codec.threads) == len(early))
        reducer.ready(last, gradient(last, FOUR[last], transport.rank, 0))
        reducer.wait(last)
        assert codec.threads[:-1] == ["gradwire n"] * len(early)

    run_ranks(2, rank_main)


@pytest.mark.parametrize(
    ("codec", "worth"), [(NoCompression(), 1), (OneBit(), 1 << 20)], ids=["no compression", "a little model"]
)
def test_where_little_is_encoded_there_is_no_thread(
    codec: Compressor, worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "WORTH_A_THREAD", worth)
    name = f"none {codec!r}"

    def rank_main(transport: Transport) -> None:
        one_step(reducer := reducer_of(transport, codec, name=name), FOUR, 0)
        assert not threads(name)
        del reducer

    run_ranks(2, rank_main)


def test_the_thread_ends_with_its_reducer() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = reducer_of(transport, OneBit(), name="ends")
        one_step(reducer, FOUR, 0)
        assert threads("ends")
        assert reducer.step == 1

    run_ranks(2, rank_main)
    gc.collect()
    assert eventually(lambda: not threads("ends"))


# Where the time went. Pauses only last longer than they should, never shorter.


@pytest.mark.parametrize("overlap", [True, False])
def test_times_are_told_apart(overlap: bool) -> None:
    def rank_main(transport: Transport) -> None:
        codec = Noting(pause=0.02)
        reducer = reducer_of(transport, codec, overlap=overlap, exchange="gather")
        begun = time.perf_counter()
        for step in range(2):
            for name in FOUR:
                reducer.ready(name, gradient(name, FOUR[name], transport.rank, step))
                time.sleep(0.03)
            if transport.rank == 1:
                time.sleep(0.1)
            for name in FOUR:
                reducer.wait(name)
        elapsed, last, total = time.perf_counter() - begun, reducer.statistics.last, reducer.statistics.total
        assert last.codec_seconds >= 4 * 0.02
        assert (last.overlapped_seconds >= 2 * 0.02) if overlap else (last.overlapped_seconds == 0.0)
        assert last.overlapped_seconds <= last.codec_seconds
        assert last.other_seconds >= 4 * 0.03 - 1e-3
        spent = total.other_seconds + total.wait_seconds + total.codec_seconds - total.overlapped_seconds
        assert spent == pytest.approx(elapsed, rel=0.05)
        if transport.rank == 0:
            assert last.wait_seconds >= 0.05

    run_ranks(2, rank_main)


def test_the_rest_is_counted_from_the_end_of_the_step_before() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = reducer_of(transport, Int8(), exchange="gather")
        for step in range(2):
            one_step(reducer, FOUR, step)
            time.sleep(0.05)
        assert reducer.statistics.last.other_seconds >= 0.05
        assert reducer.statistics.total.other_seconds < 0.1 + reducer.statistics.last.other_seconds

    run_ranks(2, rank_main)
