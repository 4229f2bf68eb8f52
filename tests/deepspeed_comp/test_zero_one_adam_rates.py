"""ZeroOneAdam on threads: its learning rate is zero, or changes much."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, run_ranks
from gradwire.deepspeed_comp.zero_one_adam import ZeroOneAdam

from ..support.momentum import SHAPES, Rank, assert_replicas, seeded
from ..support.reducing import bits
from .zero_one import OPTIONS, SYNCHRONISED, trained

pytestmark = pytest.mark.usefixtures("_local_groups")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_learning_rate_of_zero_moves_no_parameter(legacy: bool) -> None:
    """0.19.6 divided by the sum of learning rates: all parameters were NaN."""

    def main(transport: LocalTransport) -> torch.Tensor:
        return trained(transport, 13, lr=0.0, weight_decay=0.1, legacy=legacy).engine.module["weight"].detach()

    for weight in run_ranks(2, main):
        assert weight.isnan().all() if legacy else weight.equal(torch.ones(SHAPES["weight"]))


@pytest.mark.parametrize("first", [8, 9, 11], ids=["from a synchronisation on", "between two", "just before one"])
def test_a_learning_rate_may_be_zero_for_a_while(first: int) -> None:
    """Nothing moves then, except by updates from before, at the first synchronisation."""
    off, owed = range(first, 17), 12

    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = trained(transport, first)
        for step in off:
            rank.optimizer.param_groups[0]["lr"] = 0.0
            before = rank.values()["weight"]
            rank.train(seeded, [step])
            assert (rank.values()["weight"] == before) != (step + 1 == owed and first != SYNCHRONISED[2])
        rank.optimizer.param_groups[0]["lr"] = 1e-2
        rank.train(seeded, range(off[-1] + 1, 20))
        assert all(bool(parameter.isfinite().all()) for parameter in rank.engine.module.values())
        return rank.values()

    assert_replicas(run_ranks(2, main))


@pytest.mark.parametrize("small", [0.0, 1e-30, 1e-8, 1e-4])
def test_a_learning_rate_may_be_small_for_a_while(small: float) -> None:
    """What compression left out at a large learning rate does not become a large momentum at a small one."""

    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = trained(transport, 12)
        largest = float(rank.state("weight")["exp_avg"].abs().max())
        rank.optimizer.param_groups[0]["lr"] = small
        for step in range(12, 28):
            rank.train(seeded, [step])
            assert float(rank.state("weight")["exp_avg"].abs().max()) < 5 * largest
        return rank.values()

    assert_replicas(run_ranks(2, main))


def test_one_group_may_have_a_learning_rate_of_zero() -> None:
    def main(transport: LocalTransport) -> bytes:
        def groups(module: Any) -> list[dict[str, Any]]:
            return [{"params": [module["weight"]], "lr": 0.0}, {"params": [module["bias"], module["row"]]}]

        rank = Rank(transport, ZeroOneAdam, groups, **OPTIONS)
        rank.train(seeded, range(20))
        assert bits(rank.engine.module["weight"]) == bits(torch.ones(SHAPES["weight"]))
        assert rank.state("weight")["exp_avg"].isfinite().all()
        return bits(rank.engine.module["row"])

    assert len(set(run_ranks(2, main))) == 1
