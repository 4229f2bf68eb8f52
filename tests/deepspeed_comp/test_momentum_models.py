"""OneBitLamb and ZeroOneAdam against independent models of their algorithms, over 26 steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gradwire import NoCompression
from gradwire.backends import LocalTransport, run_ranks
from gradwire.deepspeed_comp.momentum import MomentumOptimizer
from gradwire.deepspeed_comp.onebit_lamb import OneBitLamb
from gradwire.deepspeed_comp.zero_one_adam import ZeroOneAdam

from ..support.momentum import SHAPES, Rank, seeded
from ..support.momentum_models import Exchange, Floats, Grads, Lamb, Named, ZeroOne
from ..support.reducing import gradient

pytestmark = pytest.mark.usefixtures("_local_groups")

STEPS = 26
Pieces = dict[str, list[tuple[int, int]] | None]


class ExactLamb(OneBitLamb):
    compressor = NoCompression()


class ExactZeroOne(ZeroOneAdam):
    compressor = NoCompression()


def grads(world_size: int) -> Grads:
    return [
        [{name: gradient(name, SHAPES[name], rank, step).numpy() for name in SHAPES} for rank in range(world_size)]
        for step in range(STEPS)
    ]


def ones() -> Named:
    return {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}


def trained(world_size: int, make: Callable[..., MomentumOptimizer], **options: Any) -> list[Rank]:
    def main(transport: LocalTransport) -> Rank:
        rank = Rank(transport, make, **options)
        rank.train(seeded, range(STEPS))
        return rank

    return run_ranks(world_size, main)


def pieces(ranks: Sequence[Rank]) -> Pieces:
    """Which rank encodes which elements a second time: how a reducer lays out its buckets is tested elsewhere.

    At two ranks none does; the bias is not compressed.
    """
    states = [rank.optimizer.rank_state()["residuals"]["dense"] for rank in ranks]
    found: Pieces = dict.fromkeys(states[0]["residuals"])
    for name in found:
        servers = [state["servers"][name] for state in states if name in state["servers"]]
        runs = [(server["start"], server["start"] + server["values"].numel()) for server in servers]
        found[name] = runs or None
    assert {name: found[name] is None for name in found} == dict.fromkeys(("weight", "row"), len(ranks) == 2)
    return found


def exact(name: str, values: Sequence[Floats]) -> Floats:
    return np.mean(values, axis=0)


def assert_close(rank: Rank, params: Named) -> None:
    for name, expected in params.items():
        actual = rank.engine.module[name].detach().numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("freeze_step", [1, 4, 100])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_lamb(world_size: int, freeze_step: int, decay: float, compressed: bool) -> None:
    options: dict[str, Any] = {"freeze_step": freeze_step, "lr": 1e-2, "eps": 1e-3}
    ranks = trained(world_size, OneBitLamb if compressed else ExactLamb, weight_decay=decay, **options)
    squeeze = compressed and world_size > 1 and freeze_step < STEPS
    model = Lamb(ones(), Exchange(pieces(ranks)).mean if squeeze else exact, decay=decay, **options)
    model.run(grads(world_size))
    for rank in ranks:
        assert_close(rank, model.params)
        assert rank.state("row")["last_factor"] == pytest.approx(model.factor["row"], rel=1e-4)
        assert rank.state("row")["lamb_coeff_freeze"] == pytest.approx(model.frozen_coefficient["row"], rel=1e-4)


SCHEDULES: list[dict[str, Any]] = [
    {"var_freeze_step": 1, "local_step_scaler": 4, "local_step_clipper": 4},
    {"var_freeze_step": 9, "var_update_scaler": 2, "local_step_scaler": 3, "local_step_clipper": 2},
    {"var_freeze_step": 100, "var_update_scaler": 2},
]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule["var_freeze_step"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_zero_one_adam(world_size: int, schedule: dict[str, Any], decay: float, compressed: bool) -> None:
    options: dict[str, Any] = {"lr": 1e-2, "eps": 1e-3}
    ranks = trained(world_size, ZeroOneAdam if compressed else ExactZeroOne, weight_decay=decay, **schedule, **options)
    layout = pieces(ranks) if compressed and world_size > 1 else {}
    model = ZeroOne(
        [ones() for _ in ranks],
        Exchange(layout).mean if layout else exact,
        Exchange(layout).mean if layout else exact,
        schedule["var_freeze_step"],
        scalers=(schedule.get("var_update_scaler", 16), schedule.get("local_step_scaler", 32678)),
        longest=schedule.get("local_step_clipper", 16),
        decay=decay,
        **options,
    )
    model.run(grads(world_size))
    for rank, params in zip(ranks, model.params, strict=True):
        assert_close(rank, params)
        assert rank.state("row")["var_interval"] == model.intervals[0]
        assert rank.state("row")["local_step_interval"] == model.intervals[1]
