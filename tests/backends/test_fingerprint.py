"""Ranks that were set up differently: the same error on every rank, with both values, and nobody hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from gradwire import FP16, Compressor, MismatchError, TensorMeta, TopK
from gradwire.backends import GradientReducer, LocalTransport, Transport, run_ranks
from gradwire.backends import reducer as reducer_module
from support.reducing import SHAPES, metas, one_step

LIMIT = 5.0


@dataclass(frozen=True)
class Setup:
    """What a rank is set up with."""

    compressor: Compressor = field(default_factory=lambda: TopK(ratio=0.1))
    metas: tuple[TensorMeta, ...] = field(default_factory=lambda: tuple(metas(SHAPES)))
    groups: Sequence[Sequence[str]] = ()
    options: dict[str, Any] = field(default_factory=dict)
    step: int = 0

    def register(self, transport: Transport) -> GradientReducer:
        reducer = GradientReducer(self.compressor, transport, timeout=LIMIT, **self.options)
        reducer.step = self.step
        reducer.register(self.metas, self.groups)
        return reducer

    def another_first(self, **changes: Any) -> Setup:
        return replace(self, metas=(replace(self.metas[0], **changes), *self.metas[1:]))


STANDARD = Setup(groups=[["w1"], ["b1"]])
#: how a rank differs, and what the error says about it on both sides
DIFFERENCES: dict[str, tuple[Setup, str, str]] = {
    "ratio": (replace(STANDARD, compressor=TopK(ratio=0.2)), "ratio=0.1", "ratio=0.2"),
    "compressor": (replace(STANDARD, compressor=FP16()), "TopK(", "FP16("),
    "seed": (replace(STANDARD, options={"seed": 3}), "seed=0", "seed=3"),
    "bucket_bytes": (replace(STANDARD, options={"bucket_bytes": 9}), "bucket_bytes=26214400", "bucket_bytes=9"),
    "exchange": (replace(STANDARD, options={"exchange": "gather"}), "exchange=auto", "exchange=gather"),
    "one more": (replace(STANDARD, metas=(*STANDARD.metas, *metas({"w9": (3,)}))), "nothing", "w9"),
    "shape": (STANDARD.another_first(shape=(40, 38)), "(40, 37)", "(40, 38)"),
    "dtype": (STANDARD.another_first(dtype=torch.float64), "float32", "float64"),
    "name": (
        replace(STANDARD.another_first(name="v1"), groups=[["v1"], ["b1"]]),
        "tensor w1",
        "tensor v1",
    ),
    "order": (replace(STANDARD, metas=tuple(reversed(STANDARD.metas))), "tensor w2", "tensor w3"),
    "groups": (replace(STANDARD, groups=[["w1", "b1"]]), "gradwire.1", "gradwire.0"),
    "step": (replace(STANDARD, step=4), "step 0", "step 4"),
}


def texts_of(
    setups: Sequence[Setup], provoke: Callable[[Setup, Transport], object], *, ordered: bool = False
) -> list[str]:
    """The text of every rank's MismatchError."""

    def rank_main(transport: LocalTransport) -> str:
        with pytest.raises(MismatchError) as caught:
            provoke(setups[transport.rank], transport)
        return str(caught.value)

    return run_ranks(len(setups), rank_main, timeout=30, ordered=ordered)


@pytest.mark.parametrize("setups", [(0, 1), (1, 0), (0, 0, 1), (0, 1, 0)], ids=str)
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_every_rank_names_the_difference(difference: str, setups: Sequence[int]) -> None:
    other, here, there = DIFFERENCES[difference]
    texts = texts_of(
        [(STANDARD, other)[number] for number in setups], lambda setup, transport: setup.register(transport)
    )
    assert len(set(texts)) == 1
    assert here in texts[0]
    assert there in texts[0]
    assert f"rank {setups.index(1) or 1} has" in texts[0]


def test_what_ranks_disagree_about_is_not_registered() -> None:
    def rank_main(transport: LocalTransport) -> None:
        reducer = GradientReducer(TopK(ratio=0.1), transport, timeout=LIMIT)
        reducer.register(metas(SHAPES))
        with pytest.raises(MismatchError):
            reducer.register(metas({"more": (7, transport.rank + 1)}))
        assert reducer.names == set(SHAPES)
        reducer.register(metas({"more": (7, 1)}))
        one_step(reducer, {**SHAPES, "more": (7, 1)}, 0)

    run_ranks(2, rank_main)


def test_another_version_on_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def provoke(setup: Setup, transport: Transport) -> None:
        reducers = []
        for turn, version in enumerate(("0.1.0", "0.2.0")):
            if transport.rank == turn:
                monkeypatch.setattr(reducer_module, "__version__", version)
                reducers.append(GradientReducer(setup.compressor, transport, timeout=LIMIT))
            transport.barrier(f"turn {turn}", LIMIT)
        reducers[0].register(setup.metas)

    first, second = texts_of([STANDARD, STANDARD], provoke)
    assert first == second
    assert "rank 0 has «gradwire 0.1.0», rank 1 has «gradwire 0.2.0»" in first


def test_later_tensors_are_compared_too() -> None:
    def provoke(setup: Setup, transport: Transport) -> None:
        reducer = setup.register(transport)
        one_step(reducer, SHAPES, 0)
        more = {"more": (7, transport.rank + 1)}
        reducer.register(metas(more))

    first, second = texts_of([STANDARD, STANDARD], provoke)
    assert first == second
    assert "(7, 1)" in first
    assert "(7, 2)" in first


def test_a_description_of_many_tensors_is_found_different_at_its_end() -> None:
    many = metas({f"{number}" * 1000: (3, number) for number in range(100, 500)})
    plain = Setup(metas=tuple(many))
    longer = Setup(metas=(*many[:-1], replace(many[-1], shape=(3, 1))))
    first, second = texts_of([plain, longer], lambda setup, transport: setup.register(transport))
    assert first == second
    assert "beyond its first" in first
