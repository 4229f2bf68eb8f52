"""Flat buckets: what was given and what is owed add up, for every codec, exchange and world size."""

from __future__ import annotations

import threading

import pytest
import torch
from gradwire import BF16, FP16, Compressor, Int8, NoCompression, OneBit, RandomK, TopK
from gradwire.backends import BucketReducer, GradientReducer, Part, Transport, run_ranks
from support.bucketing import TENSORS, Totals, assert_law, even_bounds, whole
from support.listening import Listening
from support.reducing import bits, everything, gradient, ids, metas
from support.truncating import Truncated

#: codecs that lose nothing for good
LAWFUL: list[Compressor] = [
    NoCompression(),
    TopK(ratio=0.1),
    TopK(ratio=0.2, values=FP16()),
    TopK(ratio=0.2, values=Int8()),
    RandomK(ratio=0.3),
    OneBit(block=64),
    OneBit(block=None, scale="l2"),
    Int8(block=32),
    Int8(block=32, stochastic=True, error_feedback=True),
    FP16(error_feedback=True),
    BF16(error_feedback=True),
    Truncated(),
]
ALL = [*LAWFUL, FP16(), BF16(), RandomK(ratio=0.3, error_feedback=False), Int8(stochastic=True)]
STEPS = 3
WHOLE = whole()


@pytest.mark.parametrize("world_size", range(1, 6))
@pytest.mark.parametrize("exchange", ["auto", "gather", "two_phase"])
def test_all_reduce_gives_what_came_in_less_what_is_owed(exchange: str, world_size: int) -> None:
    def rank_main(transport: Transport) -> list[tuple[Totals, Totals]]:
        return [play(codec, number, transport) for number, codec in enumerate(LAWFUL)]

    def play(codec: Compressor, number: int, transport: Transport) -> tuple[Totals, Totals]:
        reducer = BucketReducer(everything(codec), transport, name=f"r{number}", exchange=exchange)
        given: Totals = {}
        for step in range(STEPS):
            flat = WHOLE.filled(transport.rank, step)
            reducer.all_reduce(flat, WHOLE.parts)
            reducer.commit()
            assert not flat[WHOLE.padding()].any()
            WHOLE.add_to(given, flat)
        return given, {name: reducer.pending(name) for name in TENSORS}

    ranks = run_ranks(world_size, rank_main)
    exact: Totals = {}
    for step in range(STEPS):
        WHOLE.add_to(exact, WHOLE.exact(world_size, step))
    for number in range(len(LAWFUL)):
        assert_law([rank[number][0] for rank in ranks], [rank[number][1] for rank in ranks], exact)


@pytest.mark.parametrize("world_size", range(1, 6))
def test_reduce_scatter_gives_the_own_range_of_what_came_in_less_what_is_owed(world_size: int) -> None:
    """Everybody owns a run that cuts tensors; then rank 1, or 0, owns all, and rank 0 nothing."""
    bounds = even_bounds(WHOLE.numel, world_size)
    one = [0] * min(world_size, 2) + [WHOLE.numel] * (world_size + 1 - min(world_size, 2))

    def rank_main(transport: Transport) -> list[tuple[torch.Tensor, Totals]]:
        return [play(codec, number, transport) for number, codec in enumerate(LAWFUL)]

    def play(codec: Compressor, number: int, transport: Transport) -> tuple[torch.Tensor, Totals]:
        reducer = BucketReducer(everything(codec), transport, name=f"r{number}")
        total = torch.zeros(WHOLE.numel, dtype=torch.float64)
        for step, places in enumerate([bounds, one, bounds]):
            flat = WHOLE.filled(transport.rank, step)
            before = bits(flat)
            low, high = places[transport.rank : transport.rank + 2]
            out = torch.full((high - low,), 7.0)
            reducer.reduce_scatter(flat, WHOLE.parts, places, out)
            reducer.commit()
            assert bits(flat) == before
            assert not out[WHOLE.padding()[low:high]].any()
            total[low:high] += out
        return total, {name: reducer.pending(name) for name in TENSORS}

    ranks = run_ranks(world_size, rank_main)
    exact: Totals = {}
    for step in range(STEPS):
        WHOLE.add_to(exact, WHOLE.exact(world_size, step))
    for number in range(len(LAWFUL)):
        given: Totals = {}
        WHOLE.add_to(given, torch.stack([rank[number][0] for rank in ranks]).sum(0))
        assert_law([given], [rank[number][1] for rank in ranks], exact)


@pytest.mark.parametrize("codec", ALL, ids=ids)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_bucket_of_whole_tensors_is_reduced_as_by_a_gradient_reducer(codec: Compressor, dtype: torch.dtype) -> None:
    """Bit for bit, where the gradients arrive in the bucket's order; the scale is part of the mean."""

    def rank_main(transport: Transport) -> None:
        flats = BucketReducer(codec, transport, name="flat")
        grads = GradientReducer(codec, transport, name="grads")
        grads.register(metas(TENSORS, dtype))
        for step in range(2):
            flat = WHOLE.filled(transport.rank, step, dtype)
            flats.all_reduce(flat, WHOLE.parts, scale=0.5)
            flats.commit()
            for name, shape in TENSORS.items():
                grads.ready(name, gradient(name, shape, transport.rank, step, dtype))
            for part in WHOLE.parts:
                assert bits(flat[part.start : part.stop]) == bits(grads.wait(part.name, 0.5)), part.name
                assert bits(flats.pending(part.name)) == bits(grads.pending(part.name))

    for world_size in (2, 3):
        run_ranks(world_size, rank_main)


@pytest.mark.parametrize("codec", [FP16(), BF16(), Int8(stochastic=True), RandomK(ratio=0.5, error_feedback=False)])
def test_codecs_without_a_memory_are_scattered_too(codec: Compressor) -> None:
    """One value everywhere comes back as it is, and of random-k twice as large in half of the places."""

    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(everything(codec), transport)
        out = torch.empty(64)
        reducer.reduce_scatter(torch.full((128,), 3.0), [Part("w", (2, 64), 0, 128)], [0, 64, 128], out, scale=2.0)
        if isinstance(codec, RandomK):
            assert sorted(out.tolist()) == [0.0] * 32 + [12.0] * 32
        else:
            assert out.tolist() == [6.0] * 64

    run_ranks(2, rank_main)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_exact_calls_give_the_plain_mean_and_leave_residuals_alone(dtype: torch.dtype, world_size: int) -> None:
    precision = torch.finfo(dtype).eps * 2

    def rank_main(transport: Transport) -> torch.Tensor:
        reducer = BucketReducer(everything(OneBit()), transport)
        reducer.all_reduce(WHOLE.filled(transport.rank, 0, dtype), WHOLE.parts)
        reducer.commit()
        before = {name: bits(reducer.pending(name)) for name in TENSORS}
        flat = WHOLE.filled(transport.rank, 1, dtype)
        out = torch.empty(reached(transport), dtype=dtype)
        reducer.reduce_scatter(flat, WHOLE.parts, even_bounds(WHOLE.numel, world_size), out, scale=3.0, exact=True)
        reducer.all_reduce(flat, WHOLE.parts, scale=3.0, exact=True)
        reducer.commit()
        assert {name: bits(reducer.pending(name)) for name in TENSORS} == before
        expected = 3 * WHOLE.exact(world_size, 1, dtype)
        torch.testing.assert_close(flat.double(), expected, rtol=precision, atol=precision)
        low = even_bounds(WHOLE.numel, world_size)[transport.rank]
        torch.testing.assert_close(out.double(), expected[low : low + len(out)], rtol=precision, atol=precision)
        return flat

    def reached(transport: Transport) -> int:
        low, high = even_bounds(WHOLE.numel, world_size)[transport.rank : transport.rank + 2]
        return high - low

    flats = run_ranks(world_size, rank_main)
    assert len({bits(flat) for flat in flats}) == 1


def test_an_exact_call_passes_on_what_is_not_finite_where_it_is() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(TopK(ratio=0.1), transport)
        flat = torch.ones(8)
        flat[4 + transport.rank] = float("inf")
        reducer.all_reduce(flat, [Part("w", (8,), 0, 8)], exact=True)
        assert flat.isinf().nonzero().flatten().tolist() == [4, 5]
        assert flat[0] == 1

    run_ranks(2, rank_main)


def test_sixteen_bit_sums_do_not_overflow() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(NoCompression(), transport)
        for exact in (False, True):
            flat = torch.full((8,), 60000.0, dtype=torch.float16)
            reducer.all_reduce(flat, [Part("w", (8,), 0, 8)], exact=exact)
            assert flat.tolist() == [60000.0] * 8

    run_ranks(3, rank_main)


class NoSums(Listening):
    """A transport that adds fp32 only, as MPI does."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        vars(self)["sum_dtypes"] = frozenset({torch.float32})


def test_what_the_transport_cannot_add_is_gathered() -> None:
    def rank_main(transport: Transport) -> None:
        listening = NoSums(transport)
        reducer = BucketReducer(TopK(ratio=0.1), listening)
        flat = WHOLE.filled(transport.rank, 0, torch.bfloat16)
        reducer.all_reduce(flat, WHOLE.parts, exact=True)
        assert [sent.kind for sent in listening.sent] == ["all_gather", "all_gather"]
        exact = WHOLE.exact(3, 0, torch.bfloat16)
        torch.testing.assert_close(flat.double(), exact, rtol=2**-8, atol=0)

    run_ranks(3, rank_main)


@pytest.mark.parametrize("codec", [NoCompression(), TopK(ratio=0.1)], ids=ids)
def test_one_rank_alone_gets_its_bucket_back_and_talks_to_nobody(codec: Compressor) -> None:
    def rank_main(transport: Transport) -> None:
        listening = Listening(transport)
        reducer = BucketReducer(everything(codec), listening)
        for step, dtype in enumerate([torch.float32, torch.bfloat16, torch.float16]):
            flat = WHOLE.filled(0, step, dtype)
            expected = torch.where(WHOLE.padding(), 0, flat)
            out = torch.empty_like(flat)
            reducer.reduce_scatter(flat, WHOLE.parts, [0, WHOLE.numel], out)
            reducer.all_reduce(flat, WHOLE.parts)
            assert bits(flat) == bits(out) == bits(expected)
            reducer.all_reduce(flat, WHOLE.parts, scale=4.0)
            assert bits(flat) == bits(expected * 4)
        assert not listening.sent
        assert reducer.statistics.total.sent_bytes == 0

    run_ranks(1, rank_main)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_buckets_without_elements(world_size: int) -> None:
    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(TopK(ratio=0.1), transport)
        padding = torch.ones(5)
        for exact in (False, True):
            reducer.all_reduce(torch.empty(0), [], exact=exact)
            reducer.all_reduce(padding, [Part("nothing", (0, 4), 2, 0)], exact=exact)
            assert not padding.any()
            out = torch.ones(5 if transport.rank == 0 else 0)
            reducer.reduce_scatter(torch.ones(5), [], [0] + [5] * world_size, out, exact=exact)
            assert not out.any()

    run_ranks(world_size, rank_main)


def test_out_may_be_the_own_run_of_the_bucket_and_of_another_dtype() -> None:
    bounds = even_bounds(WHOLE.numel, 3)

    def rank_main(transport: Transport) -> None:
        low, high = bounds[transport.rank : transport.rank + 2]
        results = []
        for number, make in enumerate(
            [
                lambda flat: flat[low:high],
                lambda flat: torch.empty(high - low, dtype=torch.bfloat16),
                lambda flat: torch.empty(high - low),
            ]
        ):
            flat = WHOLE.filled(transport.rank, 0, torch.bfloat16)
            out = make(flat)
            BucketReducer(everything(OneBit()), transport, name=f"r{number}").reduce_scatter(
                flat, WHOLE.parts, bounds, out
            )
            results.append(out)
        assert bits(results[0]) == bits(results[1]) == bits(results[2].bfloat16())

    run_ranks(3, rank_main)


def test_calls_may_come_from_any_thread() -> None:
    """Here each from a new one; two at a time would come in an order of their own on every rank."""

    def rank_main(transport: Transport) -> bytes:
        reducer = BucketReducer(everything(TopK(ratio=0.1)), transport)
        flats = [WHOLE.filled(transport.rank, step) for step in range(3)]
        for flat in flats:
            thread = threading.Thread(target=reducer.all_reduce, args=(flat, WHOLE.parts))
            thread.start()
            thread.join()
        reducer.commit()
        assert reducer.step == 1
        return bits(torch.cat(flats))

    assert len(set(run_ranks(2, rank_main))) == 1
