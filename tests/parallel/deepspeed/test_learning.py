"""A small network learns with compressed gradients what it learns without."""

from __future__ import annotations

from functools import cache
from statistics import mean
from typing import Any

import pytest
from gradwire import BF16, FP16, Compressor, Int8, OneBit, RandomK, TopK
from support.zero import Net, assert_ranks_equal, config, initialize, train

from .conftest import Attach

STEPS = 60
ADAM: dict[str, Any] = {"optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}}
#: the loss may be this many times the uncompressed run's; it falls to a thirtieth there
FACTORS: list[tuple[Compressor, float]] = [
    (TopK(ratio=0.25), 2.5),
    (RandomK(ratio=0.5), 4.5),
    (OneBit(), 3.0),
    (Int8(), 1.05),
    (FP16(), 1.05),
    (BF16(), 1.05),
]


def final(losses: list[float]) -> float:
    return mean(losses[-10:])


@cache
def uncompressed(stage: int) -> float:
    losses = train(initialize(Net(), config(stage, **ADAM)), STEPS)
    assert final(losses) < 0.05 * mean(losses[:5])
    return final(losses)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize(("compressor", "factor"), FACTORS, ids=repr)
def test_loss(compressor: Compressor, factor: float, stage: int, compress: Attach) -> None:
    engine = initialize(Net(), config(stage, **ADAM))
    compress(engine, compressor)
    losses = train(engine, STEPS)
    assert final(losses) < factor * uncompressed(stage)
    assert_ranks_equal(engine)
