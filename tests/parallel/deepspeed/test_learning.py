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
ADAM: dict[str, Any] = {"optimizer": {"type": "Adam", "params": {"lr": 3e-3, "torch_adam": True}}}
#: the loss may be this many times the uncompressed run's; it falls to a fifth there
FACTOR = 1.3
CASES: list[tuple[int, Compressor]] = [
    *((stage, TopK(ratio=0.25)) for stage in range(4)),
    (0, RandomK(ratio=0.5)),
    (1, OneBit()),
    (2, Int8()),
    (3, FP16()),
    (3, BF16()),
]


def final(losses: list[float]) -> float:
    return mean(losses[-10:])


@cache
def uncompressed(stage: int) -> float:
    losses = train(initialize(Net(), config(stage, **ADAM)), STEPS)
    assert final(losses) < 0.25 * mean(losses[:5])
    return final(losses)


@pytest.mark.parametrize(("stage", "compressor"), CASES, ids=repr)
def test_loss(stage: int, compressor: Compressor, compress: Attach) -> None:
    engine = initialize(Net(), config(stage, **ADAM))
    compress(engine, compressor)
    losses = train(engine, STEPS)
    assert final(losses) < FACTOR * uncompressed(stage)
    assert_ranks_equal(engine)
