"""OneBitLamb on threads: what it does by default, and that DeepSpeed 0.19.6's way (`legacy`) does otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from gradwire import ConfigError
from gradwire.backends import LocalTransport, run_ranks
from gradwire.deepspeed_comp.onebit_lamb import OneBitLamb

from ..support.momentum import (
    FREEZE,
    OPTIONS,
    SHAPES,
    Rank,
    assert_replicas,
    seeded,
    without,
    zeros,
)
from ..support.momentum import trained as train
from ..support.reducing import bits, gradient

pytestmark = pytest.mark.usefixtures("_local_groups")

NAN = float("nan")


trained = partial(train, make=OneBitLamb)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_replicas_stay_equal(world_size: int, legacy: bool) -> None:
    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = trained(transport, 10, legacy=legacy, weight_decay=0.01)
        fresh = {f"{name}.fresh": bits(rank.state(name)["exp_avg_sq_fresh"]) for name in SHAPES}
        return rank.values() | fresh

    assert_replicas(run_ranks(world_size, main))


def test_flags() -> None:
    def main(transport: LocalTransport) -> None:
        rank = Rank(transport, OneBitLamb, **OPTIONS)
        for step in range(FREEZE + 2):
            rank.train(seeded, [step])
            frozen = step + 1 >= FREEZE
            assert (rank.optimizer.frozen, rank.engine.enable_backward_allreduce) == (frozen, not frozen)

    run_ranks(2, main)


# Trust ratios.


def test_a_group_may_have_bounds_of_its_own() -> None:
    def main(transport: LocalTransport) -> list[float]:
        def groups(module: Any) -> list[dict[str, Any]]:
            bounded = {"params": [module["weight"]], "max_coeff": 0.25, "min_coeff": 0.25}
            return [bounded, {"params": [module["bias"], module["row"]]}]

        rank = Rank(transport, OneBitLamb, groups, **OPTIONS, max_coeff=0.5, min_coeff=0.5)
        rank.train(seeded, [0])
        return rank.optimizer.lamb_coeffs

    assert run_ranks(2, main) == [[0.25, 0.5, 0.5]] * 2


def test_a_parameter_of_zeros_moves() -> None:
    """The ratio of norms would be 0, and hold it there."""

    def main(transport: LocalTransport) -> float:
        rank = Rank(transport, OneBitLamb, **OPTIONS)
        rank.engine.module["bias"].data.zero_()
        rank.train(seeded, range(FREEZE + 2))
        return float((rank.moved("bias") + 1).abs().min())

    assert min(run_ranks(2, main)) > 0


def test_the_factor_changes_slowly_and_within_its_bounds() -> None:
    def grown(rank: int, step: int, name: str) -> torch.Tensor:
        return gradient(name, SHAPES[name], rank, step) * (1 if step < FREEZE else 50)

    def main(transport: LocalTransport) -> None:
        rank = Rank(transport, OneBitLamb, **OPTIONS, factor_threshold=0.2)
        last = dict.fromkeys(SHAPES, 1.0)
        for step in range(40):
            rank.train(grown, [step])
            factors = {name: rank.state(name)["last_factor"] for name in SHAPES}
            assert all(0.8 * last[name] - 1e-9 <= factors[name] <= 1.2 * last[name] + 1e-9 for name in SHAPES)
            last = factors
        assert last == dict.fromkeys(SHAPES, 0.5)  # the frozen variance is far too small by now

    run_ranks(2, main)


@pytest.mark.parametrize("legacy", [False, True])
def test_with_one_step_before_the_freeze_the_second_variance_begins_at_the_frozen_one(legacy: bool) -> None:
    """0.19.6 began it at zero, so that the factor rode its limit."""

    def main(transport: LocalTransport) -> bool:
        state = trained(transport, 3, freeze_step=1, legacy=legacy).state("weight")
        return bool((state["exp_avg_sq_fresh"] >= 0.998 * state["exp_avg_sq"]).all())

    assert run_ranks(2, main) == [not legacy] * 2


# Scales.


def test_momenta_travel_at_one_root_mean_square() -> None:
    def main(transport: LocalTransport) -> list[float]:
        rank = trained(transport, FREEZE, lambda *which: gradient_of_size(*which))
        before = {name: rank.state(name)["exp_avg"].square().mean().sqrt() for name in SHAPES}
        rank.train(seeded, [FREEZE])
        return [float(rank.state(name)["scaling_coeff"] * before[name]) for name in SHAPES]

    def gradient_of_size(rank: int, step: int, name: str) -> torch.Tensor:
        return gradient(name, SHAPES[name], rank, step) * len(name) ** 4

    for sizes in run_ranks(2, main):
        assert sizes == [pytest.approx(sizes[0], rel=1e-4)] * 3


@pytest.mark.parametrize("legacy", [False, True])
def test_a_momentum_of_zeros_has_no_scale(legacy: bool) -> None:
    """0.19.6 raised ZeroDivisionError; that is left out of `legacy`."""

    def main(transport: LocalTransport) -> tuple[float, float]:
        rank = trained(transport, 8, without((0, "row"), (1, "row")) if not legacy else still, legacy=legacy)
        return rank.state("row")["scaling_coeff"], float(rank.moved("weight").abs().max())

    def still(rank: int, step: int, name: str) -> torch.Tensor:
        return zeros(rank, step, name) if name == "row" else gradient(name, SHAPES[name], rank, step)

    for scale, moved in run_ranks(2, main):
        assert scale == 1.0
        assert 0 < moved < 10


def test_a_tiny_momentum_is_not_blown_up() -> None:
    def main(transport: LocalTransport) -> float:
        return trained(transport, FREEZE + 1, tiny).state("row")["scaling_coeff"]

    def tiny(rank: int, step: int, name: str) -> torch.Tensor:
        return gradient(name, SHAPES[name], rank, step) * (1e-18 if name == "row" else 1.0)

    assert run_ranks(2, main) == [1.0, 1.0]


@pytest.mark.parametrize("legacy", [False, True])
def test_padding_is_no_part_of_scales(legacy: bool) -> None:
    """Equal magnitudes come through one bit unharmed. 0.19.6 counted its padding, which was not even cleared."""

    def main(transport: LocalTransport) -> list[float]:
        rank = trained(transport, 12, lambda rank, step, name: torch.ones(SHAPES[name]), legacy=legacy)
        return [float((rank.state(name)["exp_avg"] - (1 - 0.9**steps)).abs().max()) for name in SHAPES]

    steps = 11 if legacy else 12
    for errors in run_ranks(3, main):
        assert max(errors) < 1e-6 or legacy
        assert min(errors) > 1e-6 or not legacy


# Learning rate, messages, convergence.


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_learning_rate_of_zero_moves_no_parameter(world_size: int) -> None:
    def main(transport: LocalTransport) -> bytes:
        return bits(trained(transport, 8, lr=0.0, weight_decay=0.1).engine.module["weight"])

    assert set(run_ranks(world_size, main)) == {bits(torch.ones(SHAPES["weight"]))}


@pytest.mark.parametrize(("world_size", "expected"), [(1, 0), (2, 1), (3, 2)])
def test_a_frozen_step_is_one_exchange(world_size: int, expected: int) -> None:
    names: set[str] = set()

    def main(transport: LocalTransport) -> None:
        rank = trained(transport, FREEZE + 2)
        transport.barrier("before", 20)
        names.clear()
        transport.barrier("after", 20)
        rank.train(seeded, [FREEZE + 2])

    run_ranks(world_size, main, hook=lambda rank, name: names.add(name))
    assert len(names - {"after"}) == expected, names


def test_one_rank_alone_rounds_nothing() -> None:
    """Not even by the scales."""

    def main(transport: LocalTransport) -> None:
        rank = trained(transport, FREEZE)
        before = rank.state("weight")["exp_avg"].clone()
        rank.train(seeded, [FREEZE])
        after = before.mul(0.9).add_(gradient("weight", SHAPES["weight"], 0, FREEZE), alpha=1 - 0.9)
        assert bits(rank.state("weight")["exp_avg"]) == bits(after)

    run_ranks(1, main)


def test_it_learns_as_lamb_does() -> None:
    """Noisy gradients of a quadratic: how far from its minimum."""

    def distance(transport: LocalTransport, freeze_step: int) -> float:
        rank = Rank(transport, OneBitLamb, lr=2e-2, freeze_step=freeze_step, eps=1e-3)

        def gradients(number: int, step: int, name: str) -> torch.Tensor:
            return rank.moved(name) - 1 + 0.5 * gradient(name, SHAPES[name], number, step)

        rank.train(gradients, range(300))
        return float((rank.moved("weight") - 1).square().mean())

    compressed = run_ranks(2, lambda transport: distance(transport, 40))[0]
    dense = run_ranks(2, lambda transport: distance(transport, 1000))[0]
    assert dense < 0.05
    assert compressed < 2 * dense


def test_empty_parameters_are_left_out() -> None:
    empty, full = torch.nn.Parameter(torch.ones(0, 3)), torch.nn.Parameter(torch.ones(2))
    assert [len(group["params"]) for group in OneBitLamb([empty, full]).param_groups] == [1]
    groups = [{"params": [empty, full]}, {"params": [full.detach().clone().requires_grad_()]}]
    assert [len(group["params"]) for group in OneBitLamb(groups).param_groups] == [1, 1]


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="factor_max"):
        OneBitLamb([torch.nn.Parameter(torch.ones(3))], factormax=3.0)
