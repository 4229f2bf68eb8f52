"""Gradients that are missing, not finite or zero for ever: by default they harm nothing; with `legacy` as in 0.19.6."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, run_ranks
from gradwire.deepspeed_comp.onebit_adam import OneBitAdam

from ..support.momentum import (
    FREEZE,
    OPTIONS,
    SHAPES,
    Rank,
    assert_replicas,
    half,
    poisoned,
    seeded,
    trained,
    without,
    zeros,
)
from ..support.reducing import bits, gradient

pytestmark = pytest.mark.usefixtures("_local_groups")


# Missing gradients.


def test_a_missing_gradient_is_one_of_zeros() -> None:
    def main(transport: LocalTransport) -> tuple[dict[str, bytes], dict[str, bytes]]:
        def as_zeros(rank: int, step: int, name: str) -> torch.Tensor | None:
            return zeros(rank, step, name) if name == "row" and rank == 1 else seeded(rank, step, name)

        return trained(transport, 8, without((1, "row"))).values(), trained(transport, 8, as_zeros).values()

    for missing, zero in run_ranks(2, main):
        assert missing == zero


def test_a_group_without_any_gradient() -> None:
    """0.19.6 raised UnboundLocalError or KeyError, depending on the group's place."""

    def main(transport: LocalTransport) -> float:
        def groups(module: Any) -> list[dict[str, Any]]:
            return [{"params": [module["row"]]}, {"params": [module["weight"], module["bias"]]}]

        rank = Rank(transport, OneBitAdam, groups, **OPTIONS)
        rank.train(without((0, "row"), (1, "row")), range(8))
        assert bits(rank.engine.module["row"]) == bits(torch.ones(SHAPES["row"]))
        return float(rank.moved("weight").abs().max())

    assert min(run_ranks(2, main)) > 0


def test_a_parameter_that_needs_no_gradient_is_left_alone() -> None:
    def main(transport: LocalTransport) -> bytes:
        rank = Rank(transport, OneBitAdam, **OPTIONS, weight_decay=0.1)
        rank.engine.module["bias"].requires_grad_(False)
        rank.train(without((0, "bias"), (1, "bias")), range(6))
        return bits(rank.engine.module["bias"])

    assert set(run_ranks(2, main)) == {bits(torch.ones(SHAPES["bias"]))}


# Values that are not finite.


def test_legacy_keeps_nan_for_ever() -> None:
    def main(transport: LocalTransport) -> bool:
        rank = trained(transport, FREEZE + 2, legacy=True)
        rank.train(poisoned(FREEZE + 2, float("nan")), range(FREEZE + 2, FREEZE + 6))
        return bool(rank.state("weight")["exp_avg"].isnan().all())

    assert run_ranks(2, main) == [True, True]


# Coordinates that never saw a gradient, and masks.


def test_a_gradient_that_comes_too_late_for_the_variance_does_not_move_anything() -> None:
    def main(transport: LocalTransport) -> float:
        rank = trained(transport, FREEZE, half)
        rank.train(seeded, range(FREEZE, FREEZE + 20))
        assert_replicas([rank.values()])
        return float(rank.moved("weight")[SHAPES["weight"][0] // 2 :].abs().max())

    assert run_ranks(2, main) == [0.0, 0.0]


@pytest.mark.parametrize("legacy", [False, True])
def test_a_group_that_never_freezes(legacy: bool) -> None:
    """`non_freeze`: exact means, and the variance keeps moving."""

    def main(transport: LocalTransport) -> tuple[dict[str, bytes], torch.Tensor]:
        def groups(module: Any) -> list[dict[str, Any]]:
            never = {"params": [module["weight"]], "non_freeze": True}
            return [never, {"params": [module["bias"], module["row"]]}]

        rank = Rank(transport, OneBitAdam, groups, **OPTIONS, legacy=legacy)
        rank.train(seeded, range(8))
        return rank.values(), rank.state("weight")["exp_avg_sq"]

    results = run_ranks(2, main)
    assert_replicas([values for values, _ in results])
    expected = torch.zeros(SHAPES["weight"])
    for step in range(8):
        mean = (gradient("weight", SHAPES["weight"], 0, step) + gradient("weight", SHAPES["weight"], 1, step)) / 2
        expected = 0.999 * expected + 0.001 * mean * mean
    torch.testing.assert_close(results[0][1], expected)


# Experts: a replica of each on every second rank.


def with_experts(transport: LocalTransport, replicas: list[LocalTransport]) -> Rank:
    def groups(module: Any) -> list[dict[str, Any]]:
        shared = {"params": [module["bias"], module["row"]]}
        return [shared, {"params": [module["weight"]], "moe": True, "name": "ep_size_2"}]

    rank = Rank(transport, OneBitAdam, groups, **OPTIONS)
    rank.engine.expert_data_parallel_group["ep_size_2"] = replicas[transport.rank // 2]
    return rank


def pairs() -> list[list[LocalTransport]]:
    """For each of four ranks, the ranks with the same expert."""
    even, odd = LocalTransport.group(2), LocalTransport.group(2)
    return [even, odd, even, odd]


def test_experts_are_averaged_with_their_replicas_and_divided_by_all_ranks() -> None:
    """As the engine does it: the sum over the replicas, over the number of all ranks."""
    groups = pairs()

    def main(transport: LocalTransport) -> torch.Tensor:
        rank = with_experts(transport, groups[transport.rank])
        rank.optimizer.freeze_step = 0
        rank.optimizer.load_state_dict(trained_once(rank))
        rank.train(seeded, [1])
        return rank.state("weight")["exp_avg"].clone()

    def trained_once(rank: Rank) -> Any:
        for entry in rank.engine.module.values():
            shape = entry.shape
            rank.optimizer.state[entry] = {"step": 5, "exp_avg": torch.zeros(shape), "exp_avg_sq": torch.ones(shape)}
        return rank.optimizer.state_dict()

    momenta = run_ranks(4, main)
    assert momenta[0].equal(momenta[2])
    assert momenta[1].equal(momenta[3])
    for number in (0, 1):
        grads = [gradient("weight", SHAPES["weight"], rank, 1) for rank in (number, number + 2)]
        exact = 0.1 * (grads[0] + grads[1]) / 4
        assert momenta[number].abs().mean() == pytest.approx(float(exact.abs().mean()), rel=0.5)


@pytest.mark.parametrize("at", [1, FREEZE + 2], ids=["before the freeze", "after it"])
def test_a_bad_gradient_of_one_expert_stops_the_step_everywhere(at: int) -> None:
    groups = pairs()

    def main(transport: LocalTransport) -> tuple[bool, int]:
        rank = with_experts(transport, groups[transport.rank])
        rank.train(seeded, range(at))
        rank.engine.enable_backward_allreduce = False  # this engine would average experts over all ranks
        before = rank.values()
        rank.train(poisoned(at, float("nan")), [at])
        assert rank.values() == before
        return rank.optimizer.overflow, rank.state("weight")["step"]

    assert run_ranks(4, main) == [(True, at)] * 4
