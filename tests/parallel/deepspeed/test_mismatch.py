"""Ranks that differ in what they average: the same error on every rank, within seconds, in place of a hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradwire import MismatchError, OneBit, TopK
from gradwire.backends import BucketReducer, Part, TorchTransport
from gradwire.deepspeed_comp import attach
from support.zero import Terms, assert_ranks_equal, config, initialize, train

from .conftest import Attach

#: where a test that hangs would be ended
TIMEOUT = 60.0
#: within which all ranks know
SECONDS = 30.0
COMPRESSOR = TopK(ratio=0.05)


@contextmanager
def mismatch(words: str) -> Iterator[None]:
    """The error comes on every rank, with the same text, and soon."""
    begun = time.monotonic()
    with pytest.raises(MismatchError, match=words) as caught:
        yield
    assert time.monotonic() - begun < SECONDS
    texts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(texts, str(caught.value))
    assert len(set(texts)) == 1


def is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


@pytest.mark.parametrize("stage", range(4))
def test_options_that_differ(stage: int) -> None:
    engine = initialize(Terms(), config(stage))
    ours: dict[str, Any] = {"compressor": COMPRESSOR, "timeout": TIMEOUT}
    for theirs, words in (
        ({"compressor": TopK(ratio=0.2)}, r"rank 0 has «compressor .*ratio=0\.05.*, rank . has «.*ratio=0\.2"),
        ({"compressor": OneBit()}, r"rank 0 has «compressor .*TopK.*, rank . has «.*OneBit"),
        ({"seed": 3}, "rank 0 has «exchange=auto seed=0 .*, rank . has «exchange=auto seed=3 "),
        ({"exchange": "gather"}, "rank 0 has «exchange=auto .*, rank . has «exchange=gather "),
        ({"warmup_steps": 1}, "rank 0 has «.*warmup_steps=0», rank . has «.*warmup_steps=1»"),
    ):
        with mismatch(words):
            attach(engine, **{**ours, **(theirs if is_last() else {})})
    train(engine, 1)  # nothing is left of the attempts


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"type": "int8"}, "rank 0 has «compressor .*TopK.*, rank . has «compressor .*Int8"),
        ({"seed": 3}, "seed=0 warmup_steps=0», rank . has «exchange=auto seed=3"),
    ],
    ids=["compressor", "seed"],
)
def test_blocks_that_differ(keys: dict[str, Any], words: str, stage: int) -> None:
    block = {"type": "topk", "timeout": TIMEOUT, **(keys if is_last() else {})}
    with mismatch(words):
        initialize(Terms(), config(stage, gradient_compression=block))


def one_more(model: Terms, settings: dict[str, Any]) -> None:
    model.late = torch.nn.Parameter(torch.zeros(40, 41))


def one_less(model: Terms, settings: dict[str, Any]) -> None:
    del model.terms[4]


def another_shape(model: Terms, settings: dict[str, Any]) -> None:
    model.terms[0].weight = torch.nn.Parameter(torch.zeros(41, 37))


def frozen(model: Terms, settings: dict[str, Any]) -> None:
    model.terms[1].weight.requires_grad_(False)


def bf16_model(model: Terms, settings: dict[str, Any]) -> None:
    model.bfloat16()


def bf16_engine(model: Terms, settings: dict[str, Any]) -> None:
    settings["bf16"] = {"enabled": True}


#: what one rank does, and what the error says about it on both sides
MODELS: dict[Callable[[Terms, dict[str, Any]], None], tuple[str, str]] = {
    one_more: (r"terms.0.weight: \(37, 41\) torch.float32", r"late: \(40, 41\) torch.float32"),
    one_less: (r"terms.4.weight: \(3, 5\) torch.float32", "nothing"),
    another_shape: (r"terms.0.weight: \(37, 41\) torch.float32", r"terms.0.weight: \(41, 37\) torch.float32"),
    frozen: (r"terms.1.weight: \(41,\) torch.float32", r"terms.1.weight: \(41,\) torch.float32, frozen"),
    bf16_model: (r"terms.0.weight: \(37, 41\) torch.float32", r"terms.0.weight: \(37, 41\) torch.bfloat16"),
    bf16_engine: (r"terms.0.weight: \(37, 41\) torch.float32", r"terms.0.weight: \(37, 41\) torch.bfloat16"),
}


@pytest.mark.parametrize("guilty", ["first", "last"])
@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("change", MODELS)
def test_models_that_differ(change: Callable[[Terms, dict[str, Any]], None], stage: int, guilty: str) -> None:
    """DeepSpeed itself sends parameters round without a look at them: that hangs, or Gloo ends the process."""
    ours, theirs = MODELS[change]
    model, settings = Terms(), config(stage, gradient_compression={"type": "topk", "timeout": TIMEOUT})
    if is_last() if guilty == "last" else dist.get_rank() == 0:
        change(model, settings)
    sides = (ours, theirs) if guilty == "last" else (theirs, ours)
    with mismatch("rank 0 has «.*{}», rank . has «.*{}»".format(*sides)):
        initialize(model, settings)


@pytest.mark.parametrize("stage", range(4))
def test_dtypes_of_communication_that_differ(stage: int, compress: Attach) -> None:
    """Found in the first bucket."""
    engine = initialize(Terms(), config(stage, communication_data_type="bf16" if is_last() else "fp32"))
    compress(engine, COMPRESSOR, timeout=TIMEOUT)
    with mismatch("rank 0 has «.* torch.float32, .*, rank . has «.* torch.bfloat16, "):
        train(engine, 1)


class Choosing(Terms):
    """Uses some of the terms only, or in another order: then other gradients come, in another order."""

    chosen: Sequence[int] = range(5)

    def forward(self, batch: int) -> torch.Tensor:
        return sum((self.terms[index](batch) for index in self.chosen), torch.zeros(()))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("stage", "other"), [(1, (0, 1, 3, 4)), (2, (0, 1, 3, 4)), (2, (4, 3, 2, 1, 0))])
def test_buckets_that_differ_after_some_equal_steps(
    stage: int, other: Sequence[int], known: bool, compress: Attach
) -> None:
    """Also where every rank has met both kinds of buckets before.

    At stage 0 DeepSpeed averages zeros for what has no gradient; at stage 3 its own gathers of parameters hang.
    """
    model = Choosing()
    engine = initialize(model, config(stage))
    compress(engine, COMPRESSOR, timeout=TIMEOUT)
    train(engine, 2)
    if known:
        model.chosen = other
        train(engine, 2, first=2)
        model.chosen = Choosing.chosen
        train(engine, 1, first=4)
    assert_ranks_equal(engine)
    if is_last():
        model.chosen = other
    with mismatch("rank 0 has «all_reduce.*terms.*», rank . has «all_reduce.*terms"):
        train(engine, 1, first=5)


ALL, FEWER = [Part("w", (64, 64), 0, 4096), Part("v", (8,), 4096, 8)], [Part("w", (64, 64), 0, 4096)]
CALLS: dict[str, dict[str, Any]] = {
    "all_reduce": {},
    "to owners": {"bounds": True},
    "exact": {"exact": True},
    "shorter": {"numel": 4104},
    "fewer parts": {"parts": FEWER},
    "in bf16": {"dtype": torch.bfloat16},
}


def call(
    reducer: BucketReducer,
    numel: int = 4110,
    parts: Sequence[Part] = ALL,
    dtype: torch.dtype = torch.float32,
    bounds: bool = False,
    exact: bool = False,
) -> None:
    flat = torch.ones(numel, dtype=dtype)
    if not bounds:
        reducer.all_reduce(flat, parts, exact=exact)
        return
    rank, world_size = dist.get_rank(), dist.get_world_size()
    places = [numel * number // world_size for number in range(world_size + 1)]
    reducer.reduce_scatter(flat, parts, places, flat[places[rank] : places[rank + 1]], exact=exact)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("other", [name for name in CALLS if name != "all_reduce"])
def test_calls_that_differ(other: str, known: bool) -> None:
    """Gloo pairs collectives by their order alone, and ends the process where sizes differ."""
    reducer = BucketReducer(OneBit(), TorchTransport(), timeout=TIMEOUT)
    call(reducer)
    if known:
        call(reducer, **CALLS[other])
    reducer.commit()
    with mismatch("rank 0 has «all_reduce: 4110 torch.float32, 2 parts from 'w' to 'v'», rank . has «"):
        call(reducer, **CALLS[other if is_last() else "all_reduce"])
    call(reducer)
