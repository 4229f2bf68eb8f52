"""Flat buckets that go wrong: the same on every rank where it can be, nothing moves, and the next call works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from gradwire import (
    Compressor,
    ConfigError,
    MismatchError,
    OneBit,
    PayloadError,
    PeerError,
    TopK,
    TransportError,
    UsageError,
)
from gradwire.backends import BucketReducer, Part, Transport, run_ranks
from support.bucketing import even_bounds, kept_bits, whole
from support.reducing import bits, everything
from support.truncating import Trap, Truncated

LIMIT = 5.0
WHOLE = whole()
W, V = Part("w", (40, 40), 0, 1600), Part("v", (8,), 1600, 8)


@dataclass(frozen=True)
class Setup:
    """What a rank calls."""

    parts: tuple[Part, ...] = (W, V)
    numel: int = 1610
    dtype: torch.dtype = torch.float32
    bounds: tuple[int, ...] | None = None
    exact: bool = False
    compressor: Compressor = field(default_factory=lambda: TopK(ratio=0.1))
    options: dict[str, Any] = field(default_factory=dict)
    before: int = 0

    def call(self, transport: Transport) -> BucketReducer:
        reducer = BucketReducer(self.compressor, transport, timeout=LIMIT, **self.options)
        reducer._calls = self.before
        flat = torch.ones(self.numel, dtype=self.dtype)
        if self.bounds is None:
            reducer.all_reduce(flat, self.parts, exact=self.exact)
        else:
            out = torch.empty(self.bounds[transport.rank + 1] - self.bounds[transport.rank])
            reducer.reduce_scatter(flat, self.parts, self.bounds, out, exact=self.exact)
        return reducer


STANDARD = Setup()
#: how a rank differs, and what the error says about it on both sides
DIFFERENCES: dict[str, tuple[Setup, str, str]] = {
    "compressor": (Setup(compressor=TopK(ratio=0.2)), "ratio=0.1", "ratio=0.2"),
    "seed": (Setup(options={"seed": 3}), "seed=0", "seed=3"),
    "exchange": (Setup(options={"exchange": "gather"}), "exchange=auto", "exchange=gather"),
    "call": (Setup(bounds=(0, 9, 1610)), "all_reduce", r"reduce_scatter at \[0, 9, 1610\]"),
    "exact": (Setup(exact=True), "torch.float32»", "torch.float32, exact»"),
    "length": (Setup(numel=1611), "1610", "1611"),
    "dtype": (Setup(dtype=torch.bfloat16), "float32", "bfloat16"),
    "name": (Setup(parts=(W, V._replace(name="u"))), "part v", "part u"),
    "shape": (Setup(parts=(W._replace(shape=(1600,)), V)), r"\(40, 40\)", r"\(1600,\)"),
    "place": (Setup(parts=(W, V._replace(start=1602))), r"\(1600, 8, 0\)", r"\(1602, 8, 0\)"),
    "elements": (Setup(parts=(W, V._replace(numel=4))), r"\(1600, 8, 0\)", r"\(1600, 4, 0\)"),
    "offset": (
        Setup(parts=(W, V._replace(numel=4, offset=4))),
        r"\(1600, 8, 0\)",
        r"\(1600, 4, 4\)",
    ),
    "one part less": (Setup(parts=(W,)), "part v", "nothing"),
    "calls so far": (Setup(before=3), "step 0", "step 3"),
}


@pytest.mark.parametrize("different", DIFFERENCES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_that_ask_for_different_things(world_size: int, different: str) -> None:
    other, ours, theirs = DIFFERENCES[different]
    if other.bounds is not None:
        other = replace(other, bounds=(0, *other.bounds[1:-1], *[1610] * (world_size - 1)))
        theirs = theirs if world_size == 2 else "reduce_scatter"

    def rank_main(transport: Transport) -> None:
        setup = other if transport.rank == 1 else STANDARD
        with pytest.raises(MismatchError, match=f"rank 0 has «.*{ours}.*rank 1 has «.*{theirs}"):
            setup.call(transport)

    run_ranks(world_size, rank_main)


def test_owners_that_differ() -> None:
    def rank_main(transport: Transport) -> None:
        with pytest.raises(MismatchError, match="scatter at"):
            Setup(bounds=(0, 800 + transport.rank, 1610)).call(transport)

    run_ranks(2, rank_main)


def test_after_a_mismatch_the_reducer_works() -> None:
    def rank_main(transport: Transport) -> bytes:
        reducer = BucketReducer(everything(OneBit()), transport, timeout=LIMIT)
        reducer.all_reduce(WHOLE.filled(transport.rank, 0), WHOLE.parts)
        before = kept_bits(reducer)
        flat = WHOLE.filled(transport.rank, 1)
        with pytest.raises(MismatchError):
            reducer.all_reduce(flat, WHOLE.parts[1 + transport.rank :])
        assert kept_bits(reducer) == before
        reducer.all_reduce(flat, WHOLE.parts)
        return bits(flat)

    assert len(set(run_ranks(3, rank_main))) == 1


@pytest.mark.parametrize("call", ["gather", "two_phase", "reduce_scatter"])
def test_ranks_that_are_not_at_the_same_call_are_told_by_the_messages(call: str) -> None:
    """A layout that is known already is not compared again, but every message says which call it is of."""

    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(everything(TopK(ratio=0.1)), transport, exchange=_exchange(call), timeout=LIMIT)
        for _ in range(2):
            _call(reducer, call, WHOLE.filled(transport.rank, 0))
        if transport.rank == 1:
            reducer.rollback()
        before = kept_bits(reducer)
        with pytest.raises(PayloadError, match="step is"):
            _call(reducer, call, WHOLE.filled(transport.rank, 0))
        assert kept_bits(reducer) == before

    run_ranks(2, rank_main)


def _exchange(call: str) -> str:
    return "auto" if call == "reduce_scatter" else call


def _call(reducer: BucketReducer, call: str, flat: torch.Tensor) -> torch.Tensor:
    if call != "reduce_scatter":
        reducer.all_reduce(flat, WHOLE.parts)
        return flat
    bounds = even_bounds(WHOLE.numel, reducer.transport.world_size)
    out = torch.empty(bounds[reducer.transport.rank + 1] - bounds[reducer.transport.rank])
    reducer.reduce_scatter(flat, WHOLE.parts, bounds, out)
    return out


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    ("call", "sums"), [("gather", False), ("two_phase", False), ("reduce_scatter", False), ("all_reduce", True)]
)
def test_a_codec_that_raises_on_one_rank(call: str, sums: bool, world_size: int) -> None:
    """The others get an error too; where sums have no room for words they get NaN. Then all goes on."""

    def rank_main(transport: Transport, failing: int) -> bytes:
        codec = everything(Truncated(sums=sums, trap=(trap := Trap(rank=failing, step=1, tensor="w2"))))
        reducer = BucketReducer(codec, transport, exchange=_exchange(call), timeout=LIMIT)
        _call(reducer, call, WHOLE.filled(transport.rank, 0))
        before = kept_bits(reducer)
        if failing < 0:
            return bits(_call(reducer, call, WHOLE.filled(transport.rank, 2)))
        if transport.rank == failing:
            with pytest.raises(ArithmeticError, match="truncated"):
                _call(reducer, call, WHOLE.filled(transport.rank, 1))
        elif sums:
            assert _call(reducer, call, WHOLE.filled(transport.rank, 1)).isnan().all()
        else:
            with pytest.raises(PeerError, match=f"rank {failing}"):
                _call(reducer, call, WHOLE.filled(transport.rank, 1))
        assert kept_bits(reducer) == before
        trap.rank = -1
        return bits(_call(reducer, call, WHOLE.filled(transport.rank, 2)))

    for failing in range(world_size):
        repaired = run_ranks(world_size, lambda transport, failing=failing: rank_main(transport, failing))
        clean = run_ranks(world_size, lambda transport: rank_main(transport, -1))
        assert repaired == clean


def test_after_a_failed_collective_there_is_no_further_call() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(everything(TopK(ratio=0.1)), transport, timeout=0.2)
        _call(reducer, "all_reduce", WHOLE.filled(transport.rank, 0))
        if transport.rank == 0:
            return
        before = kept_bits(reducer)
        for words in ("rank 0", "no further call"):
            with pytest.raises(TransportError, match=words):
                _call(reducer, "all_reduce", WHOLE.filled(transport.rank, 1))
        assert kept_bits(reducer) == before

    run_ranks(2, rank_main)


def refused(call: Callable[[BucketReducer], None], words: str) -> None:
    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(TopK(ratio=0.1), transport)
        reducer.all_reduce(torch.ones(8), [Part("w", (4, 2), 0, 8)])
        with pytest.raises(UsageError, match=words):
            call(reducer)

    run_ranks(1, rank_main)


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        (torch.ones(2, 4), "2, 4"),
        (torch.ones(16)[::2], "contiguous"),
        (torch.ones(8, dtype=torch.float64), "float64"),
        (torch.ones(8, dtype=torch.int32), "int32"),
    ],
)
def test_what_is_no_flat_bucket_is_refused(flat: torch.Tensor, words: str) -> None:
    refused(lambda reducer: reducer.all_reduce(flat, []), words)
    refused(lambda reducer: reducer.reduce_scatter(flat, [], [0, flat.numel()], torch.ones(8)), words)
    refused(lambda reducer: reducer.reduce_scatter(torch.ones(8), [], [0, 8], flat), words)


@pytest.mark.parametrize("bounds", [[0, 4], [1, 8], [8], [], [0, 4, 8], [0, 9]])
def test_bounds_that_do_not_cover_the_bucket_are_refused(bounds: list[int]) -> None:
    refused(lambda reducer: reducer.reduce_scatter(torch.ones(8), [], bounds, torch.ones(8)), "bounds are")


def test_out_of_another_length_is_refused() -> None:
    refused(lambda reducer: reducer.reduce_scatter(torch.ones(8), [], [0, 8], torch.ones(7)), "vector of 8 elements")


def test_parts_that_do_not_fit_are_refused() -> None:
    refused(lambda reducer: reducer.all_reduce(torch.ones(4), [Part("v", (8,), 0, 8)]), "does not fit")


def test_a_tensor_keeps_its_shape() -> None:
    refused(
        lambda reducer: reducer.all_reduce(torch.ones(8), [Part("w", (8,), 0, 8)]), r"\(8,\) here, and was \(4, 2\)"
    )


def test_a_tensor_may_not_be_named_like_a_piece_of_another() -> None:
    parts = [Part("w", (4, 2), 0, 4), Part("w[0:4]", (4,), 4, 4)]
    refused(lambda reducer: reducer.all_reduce(torch.ones(8), parts), "named like a piece")


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"exchange": "ring"}, {"exchange": "all_reduce"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    def rank_main(transport: Transport) -> None:
        with pytest.raises(ConfigError, match=next(iter(options))):
            BucketReducer(TopK(), transport, **options)

    run_ranks(1, rank_main)
