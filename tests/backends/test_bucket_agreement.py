"""Ranks that ask a bucket reducer for different things: the same error on every rank, at once, and nothing moves."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from gradwire import Compressor, MismatchError, OneBit, TopK, TransportError, TransportTimeout, UsageError
from gradwire.backends import BucketReducer, Part, Transport, run_ranks
from gradwire.backends.flat_plan import Request
from support.bucketing import kept_bits
from support.reducing import bits, everything

LIMIT = 5.0
W, V = Part("w", (40, 40), 0, 1600), Part("v", (8,), 1600, 8)


@dataclass(frozen=True)
class Setup:
    """What a rank calls."""

    parts: tuple[Part, ...] = (W, V)
    numel: int = 1610
    dtype: torch.dtype = torch.float32
    bounds: tuple[int, ...] | None = None
    exact: bool = False
    scale: float = 1.0
    compressor: Compressor = field(default_factory=lambda: TopK(ratio=0.1))
    options: dict[str, Any] = field(default_factory=dict)

    def reducer(self, transport: Transport) -> BucketReducer:
        return BucketReducer(self.compressor, transport, timeout=LIMIT, **self.options)

    def call(self, reducer: BucketReducer) -> torch.Tensor:
        rank, world_size = reducer.transport.rank, reducer.transport.world_size
        flat = torch.arange(self.numel).to(self.dtype).add_(rank)
        if self.bounds is None:
            reducer.all_reduce(flat, self.parts, scale=self.scale, exact=self.exact)
            return flat
        bounds = (*self.bounds[:-1], *[self.numel] * (world_size + 2 - len(self.bounds)))
        out = torch.empty(bounds[rank + 1] - bounds[rank], dtype=self.dtype)
        reducer.reduce_scatter(flat, self.parts, bounds, out, scale=self.scale, exact=self.exact)
        return out


STANDARD = Setup()
#: how a rank's call differs, and what the error says about it on both sides
CALLS: dict[str, tuple[Setup, str, str]] = {
    "call": (Setup(bounds=(0, 9, 1610)), "all_reduce", r"reduce_scatter at \[0, 9, 1610"),
    "exact": (Setup(exact=True), "float32, 2 parts", "float32, exact, 2 parts"),
    "length": (Setup(numel=1611), "1610", "1611"),
    "dtype": (Setup(dtype=torch.bfloat16), "float32", "bfloat16"),
    "name": (Setup(parts=(W, V._replace(name="u"))), "2 parts from 'w' to 'v'", "2 parts from 'w' to 'u'"),
    "shape": (Setup(parts=(W._replace(shape=(1600,)), V)), r"\(40, 40\)", r"\(1600,\)"),
    "place": (Setup(parts=(W, V._replace(start=1602))), r"\(1600, 8, 0\)", r"\(1602, 8, 0\)"),
    "elements": (Setup(parts=(W, V._replace(numel=4))), r"\(1600, 8, 0\)", r"\(1600, 4, 0\)"),
    "offset": (Setup(parts=(W, V._replace(numel=4, offset=4))), r"\(1600, 8, 0\)", r"\(1600, 4, 4\)"),
    "order": (Setup(parts=(V, W)), "'w' to 'v'", "'v' to 'w'"),
    "one part less": (Setup(parts=(W,)), "2 parts from 'w' to 'v'", "1 parts from 'w' to 'w'"),
    "one part more": (Setup(parts=(W, Part("u", (2,), 1608, 2), V)), "2 parts", "3 parts"),
    "padding only": (Setup(parts=()), "2 parts", "nothing but padding"),
    "scale": (Setup(scale=2.0), "scale 1.0", "scale 2.0"),
    "parts that do not fit": (Setup(parts=(W, V._replace(start=1603))), r"\(1600, 8, 0\)", r"\(1603, 8, 0\)"),
}
#: two kinds of scatters, or of exact calls: with each other, and not with an all-reduce that is compressed
BESIDES: dict[str, tuple[Setup, Setup, str, str]] = {
    "owners": (Setup(bounds=(0, 800, 1610)), Setup(bounds=(0, 801, 1610)), "at .0, 800", "at .0, 801"),
    "exact scatter": (
        Setup(bounds=(0, 9, 1610)),
        Setup(bounds=(0, 9, 1610), exact=True),
        "float32, 2 parts",
        "float32, exact, 2 parts",
    ),
    "exact calls": (Setup(exact=True), Setup(exact=True, bounds=(0, 9, 1610)), "all_reduce", "reduce_scatter"),
    "exact length": (Setup(exact=True), Setup(exact=True, numel=1612), "1610", "1612"),
}
CASES = {name: (STANDARD, *case) for name, case in CALLS.items()} | BESIDES
#: which of the two calls all ranks have made before
KNOWN = {"neither": (), "ours": (0,), "theirs": (1,), "both": (0, 1), "both, the other way round": (1, 0)}


def fits_together(case: str, known: tuple[int, ...]) -> bool:
    """A tensor keeps its shape, and what does not fit is never known."""
    return not (case == "shape" and len(known) == 2) and not (case == "parts that do not fit" and 1 in known)


@pytest.mark.parametrize("guilty", [0, 1, 2])
@pytest.mark.parametrize(
    ("case", "known"), [(case, known) for case in CASES for known in KNOWN if fits_together(case, KNOWN[known])]
)
def test_ranks_that_ask_for_different_things(case: str, known: str, guilty: int) -> None:
    """Whatever is new to them: one would describe its bucket where the other sends its payload."""
    ours, theirs, here, there = CASES[case]

    def rank_main(transport: Transport) -> str:
        reducer = ours.reducer(transport)
        for number in KNOWN[known]:
            (ours, theirs)[number].call(reducer)
        reducer.commit()
        before = kept_bits(reducer)
        with pytest.raises(MismatchError) as caught:
            (theirs if transport.rank == guilty else ours).call(reducer)
        assert kept_bits(reducer) == before
        return str(caught.value)

    sides = f"«.*{here}.*«.*{there}" if guilty else f"«.*{there}.*«.*{here}"
    texts = run_ranks(3, rank_main)
    assert len(set(texts)) == 1
    assert re.match(f"ranks disagree: rank 0 has {sides}", texts[0])


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("ordered", [True, False])
def test_after_a_mismatch_the_reducer_works(known: str, ordered: bool) -> None:
    """As if nothing had been asked for: plans are made, named and forgotten alike on all ranks."""

    def rank_main(transport: Transport, differ: bool) -> list[bytes]:
        reducer = BucketReducer(everything(OneBit()), transport, timeout=LIMIT)
        setups = [STANDARD, Setup(numel=1611)]
        for number in KNOWN[known]:
            setups[number].call(reducer)
        if differ:
            with pytest.raises(MismatchError):
                setups[transport.rank].call(reducer)
        results = [setup.call(reducer) for setup in (Setup(numel=1700), *setups, Setup(numel=1701), *setups)]
        return [*(bits(flat) for flat in results), *(bucket.name.encode() for bucket in reducer.statistics.buckets)]

    clean = run_ranks(2, lambda transport: rank_main(transport, False), ordered=ordered)
    assert run_ranks(2, lambda transport: rank_main(transport, True), ordered=ordered) == clean


def test_plans_are_forgotten_alike_after_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that a rank asked for in vain was not used."""
    monkeypatch.setattr("gradwire.backends.flat_plans.LIMIT", 2)

    def rank_main(transport: Transport) -> list[str]:
        reducer = BucketReducer(everything(OneBit()), transport, timeout=LIMIT)
        setups = [Setup(numel=1610 + number) for number in range(3)]
        setups[0].call(reducer)
        setups[1].call(reducer)
        with pytest.raises(MismatchError):
            setups[transport.rank].call(reducer)
        setups[2].call(reducer)
        setups[0].call(reducer)
        return [bucket.name for bucket in reducer.statistics.buckets]

    assert run_ranks(2, rank_main, ordered=False) == [["gradwire.2.0", "gradwire.3.0"]] * 2


@pytest.mark.parametrize(
    ("options", "here", "there"),
    [
        ({"compressor": TopK(ratio=0.2)}, "ratio=0.1", "ratio=0.2"),
        ({"options": {"seed": 3}}, "seed=0", "seed=3"),
        ({"options": {"exchange": "gather"}}, "exchange=auto", "exchange=gather"),
    ],
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_reducers_that_were_made_differently(world_size: int, options: dict[str, Any], here: str, there: str) -> None:
    def rank_main(transport: Transport) -> None:
        setup = replace(STANDARD, **options) if transport.rank == 1 else STANDARD
        with pytest.raises(MismatchError, match=f"rank 0 has «.*{here}.*rank 1 has «.*{there}"):
            setup.call(setup.reducer(transport))

    run_ranks(world_size, rank_main)


def back_to_the_start(reducer: BucketReducer) -> None:
    reducer.load_state_dict(STANDARD.reducer(reducer.transport).state_dict())


#: what rank 1 does alone between two calls that are the same on all ranks, and what the error says
ALONE: dict[str, tuple[Callable[[BucketReducer], None], str]] = {
    "commit": (BucketReducer.commit, "rank 0 has «step 1, call 2», rank 1 has «step 2, call 2»"),
    "rollback": (BucketReducer.rollback, "rank 0 has «step 1, call 2», rank 1 has «step 1, call 1»"),
    "load": (back_to_the_start, "rank 0 has «step 1, call 2», rank 1 has «step 0, call 0»"),
}


@pytest.mark.parametrize("setup", [STANDARD, Setup(bounds=(0, 9, 1610))], ids=["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("alone", ALONE)
def test_ranks_that_are_not_at_the_same_call(alone: str, setup: Setup) -> None:
    """One bucket, known to all, would be averaged with that of another step."""
    action, words = ALONE[alone]

    def rank_main(transport: Transport) -> None:
        reducer = setup.reducer(transport)
        setup.call(reducer)
        reducer.commit()
        setup.call(reducer)
        if transport.rank == 1:
            action(reducer)
        before = kept_bits(reducer)
        with pytest.raises(MismatchError, match=words):
            setup.call(reducer)
        assert kept_bits(reducer) == before

    run_ranks(2, rank_main)


@pytest.mark.parametrize("exact", [False, True])
def test_a_call_too_many_meets_one_of_the_next_step(exact: bool) -> None:
    def rank_main(transport: Transport) -> None:
        setup = Setup(exact=exact)
        reducer = setup.reducer(transport)
        setup.call(reducer)
        if transport.rank == 1:
            reducer.commit()
        with pytest.raises(MismatchError, match=r"rank 0 has «step 0, .*, rank 1 has «step 1, "):
            setup.call(reducer)

    run_ranks(2, rank_main)


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (STANDARD, "«all_reduce: 1610 torch.float32, 2 parts from 'w' to 'v'»"),
        (Setup(exact=True), "«all_reduce: 1610 torch.float32, exact, 2 parts from 'w' to 'v'»"),
        (
            Setup(bounds=(0, 9, 1610)),
            r"«reduce_scatter at \[0, 9, 1610\]: 1610 torch.float32, 2 parts from 'w' to 'v'»",
        ),
        (Setup(parts=()), "«all_reduce: 1610 torch.float32, nothing but padding»"),
    ],
)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("stays", [False, True])
def test_a_call_that_one_rank_makes_alone_says_what_it_was(stays: bool, known: bool, setup: Setup, words: str) -> None:
    """Nobody tells the rank what the other one does instead; if that ends, it is told so at once."""
    over = threading.Event()

    def rank_main(transport: Transport) -> None:
        reducer = BucketReducer(setup.compressor, transport, timeout=0.2)
        if known:
            setup.call(reducer)
            reducer.commit()
        if transport.rank == 1:
            over.wait(LIMIT if stays else 0)
            return
        error = TransportTimeout if stays else TransportError
        cause = "not finished within 0.2 s" if stays else "rank 1 left the group"
        with pytest.raises(error, match=f"{cause}.*In step {int(known)} this rank was about to average.*{words}"):
            setup.call(reducer)
        over.set()

    run_ranks(2, rank_main)


def test_a_call_that_one_rank_refuses() -> None:
    """An output that does not fit is not compared; but the others must not wait for this rank."""
    words = "rank 0 has «nothing», rank 1 has «refused: out is torch.float32 .1,., expected a contiguous vector of 0"

    def rank_main(transport: Transport) -> bytes:
        reducer = STANDARD.reducer(transport)
        out = torch.empty(1 if transport.rank == 1 else 1610)
        with pytest.raises(MismatchError, match=words):
            reducer.reduce_scatter(torch.ones(1610), (W, V), [0, 1610, 1610], out)
        return bits(STANDARD.call(reducer))

    assert len(set(run_ranks(2, rank_main))) == 1


def test_a_call_that_all_ranks_refuse() -> None:
    def rank_main(transport: Transport) -> bytes:
        reducer = STANDARD.reducer(transport)
        with pytest.raises(UsageError, match="does not fit"):
            Setup(numel=1600).call(reducer)
        return bits(STANDARD.call(reducer))

    assert len(set(run_ranks(2, rank_main))) == 1


def test_a_known_call_that_agrees_is_not_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """A description of thousands of parts would be made for nothing in every call."""
    described: list[Request] = []
    lines = Request.lines

    def listening(request: Request) -> list[str]:
        described.append(request)
        return lines(request)

    monkeypatch.setattr(Request, "lines", listening)

    def rank_main(transport: Transport) -> None:
        reducer = STANDARD.reducer(transport)
        for _ in range(3):
            STANDARD.call(reducer)
            reducer.commit()

    run_ranks(3, rank_main)
    assert len(described) == 3  # once on every rank
