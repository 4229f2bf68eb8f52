"""ZeroOneAdam on threads: what it does by default, and that DeepSpeed 0.19.6's way (`legacy`) does otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire import ConfigError
from gradwire.backends import LocalTransport, run_ranks
from gradwire.deepspeed_comp.zero_one_adam import ZeroOneAdam

from ..support.momentum import SHAPES, Rank, assert_replicas, half, poisoned, seeded
from ..support.reducing import bits, gradient
from .zero_one import FREEZE, LONELY, OPTIONS, SYNCHRONISED, trained

pytestmark = pytest.mark.usefixtures("_local_groups")

# When ranks agree.


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_replicas_are_equal_at_synchronisations_and_only_there(world_size: int) -> None:
    def main(transport: LocalTransport) -> list[dict[str, bytes]]:
        rank, values = trained(transport, 0, weight_decay=0.01), []
        for step in range(20):
            rank.train(seeded, [step])
            values.append(rank.values())
        return values

    ranks = run_ranks(world_size, main)
    for number, values in enumerate(zip(*ranks, strict=True), start=1):
        if number <= FREEZE or number in SYNCHRONISED:
            assert_replicas(values)
        else:
            assert number in LONELY
            assert values[0] != values[1]


def test_legacy_replicas_agree_only_up_to_rounding() -> None:
    """0.19.6 took back the local steps, and what it came to was another place on every rank."""

    def main(transport: LocalTransport) -> torch.Tensor:
        return trained(transport, 20, legacy=True).engine.module["weight"].detach()

    first, second = run_ranks(2, main)
    assert not first.equal(second)
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


def test_flags() -> None:
    """The engine averages gradients for the steps that move the variance."""

    def main(transport: LocalTransport) -> list[bool]:
        rank, flags = Rank(transport, ZeroOneAdam, **(OPTIONS | {"var_freeze_step": 14})), []
        for step in range(20):
            variance = bits(rank.state("weight")["exp_avg_sq"]) if step else b""
            flags.append(rank.engine.enable_backward_allreduce)
            rank.train(seeded, [step])
            assert flags[-1] == (bits(rank.state("weight")["exp_avg_sq"]) != variance)
            assert rank.optimizer.frozen == (step + 1 >= 14)
        return flags

    assert [step for step, flag in enumerate(run_ranks(2, main)[0], start=1) if flag] == [1, 2, 4, 6, 8, 12]


def test_a_local_step_sends_nothing() -> None:
    names: set[str] = set()

    def exchanges(world_size: int, steps: int) -> int:
        def main(transport: LocalTransport) -> None:
            rank = trained(transport, steps - 1)
            transport.barrier("before", 20)
            names.clear()
            transport.barrier("after", 20)
            rank.train(seeded, [steps - 1])

        run_ranks(world_size, main, hook=lambda rank, name: names.add(name))
        return len(names - {"after"})

    assert [exchanges(2, step) for step in (9, 10, 11, 12)] == [0, 0, 0, 1]
    assert [exchanges(3, step) for step in (15, 16)] == [0, 2]
    assert exchanges(1, 12) == 0


def test_residuals_of_gradients_are_not_those_of_updates() -> None:
    def main(transport: LocalTransport) -> list[list[str]]:
        before, after = trained(transport, FREEZE - 1), trained(transport, FREEZE)
        return [list(rank.optimizer.rank_state()["residuals"]) for rank in (before, after)]

    assert run_ranks(2, main)[0] == [["dense"], []]


def test_it_learns_as_adam_does() -> None:
    """Noisy gradients of a quadratic: how far from its minimum."""

    def distance(transport: LocalTransport, **options: Any) -> float:
        rank = Rank(transport, ZeroOneAdam, lr=2e-2, eps=1e-3, betas=(0.9, 0.95), **options)

        def gradients(number: int, step: int, name: str) -> torch.Tensor:
            return rank.moved(name) - 1 + 0.5 * gradient(name, SHAPES[name], number, step)

        rank.train(gradients, range(300))
        return float((rank.moved("weight") - 1).square().mean())

    schedule = {"var_freeze_step": 60, "var_update_scaler": 8, "local_step_scaler": 40, "local_step_clipper": 4}
    compressed = run_ranks(2, lambda transport: distance(transport, **schedule))
    dense = run_ranks(2, lambda transport: distance(transport, var_update_scaler=1000))
    assert max(dense) < 0.01
    assert max(compressed) < 1.5 * max(dense)


# Gradients that are bad or late, and masks.


def test_a_local_gradient_that_is_not_finite_is_left_out() -> None:
    """Nobody else knows about it, so the step counts."""
    at = LONELY[1] - 1

    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = trained(transport, at)
        before = rank.values()
        rank.train(poisoned(at, float("nan")), [at])
        assert not rank.optimizer.overflow
        assert rank.state("weight")["step"] == at + 1
        assert (rank.values() == before) is (transport.rank == 1)
        rank.train(seeded, range(at + 1, 12))
        assert all(bool(parameter.isfinite().all()) for parameter in rank.engine.module.values())
        return rank.values()

    assert_replicas(run_ranks(2, main))


def test_a_gradient_that_comes_too_late_for_the_variance_does_not_move_anything() -> None:
    def main(transport: LocalTransport) -> None:
        rank, late = trained(transport, FREEZE, half), slice(SHAPES["weight"][0] // 2, None)
        for step in range(FREEZE, 16):
            rank.train(seeded, [step])
            assert not rank.moved("weight")[late].any()
            assert not rank.state("weight")["exp_avg"][late].any()

    run_ranks(2, main)


@pytest.mark.parametrize("steps", [3, 12])
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_a_mask_keeps_averages_at_zero(flat: bool, legacy: bool, steps: int) -> None:
    mask = torch.ones(SHAPES["weight"])
    mask[:, 7] = 0

    def gradients(rank: int, step: int, name: str) -> torch.Tensor:
        grad = gradient(name, SHAPES[name], rank, step)
        return grad.mul_(mask) if name == "weight" else grad

    def main(transport: LocalTransport) -> tuple[bool, bool]:
        def groups(module: Any) -> list[dict[str, Any]]:
            masked = {"params": [module["weight"]], "exp_avg_mask": mask.view(-1) if flat else mask}
            return [masked, {"params": [module["bias"], module["row"]]}]

        rank = Rank(transport, ZeroOneAdam, groups, **OPTIONS, legacy=legacy)
        rank.train(gradients, range(steps))
        momentum = rank.state("weight")["exp_avg"]
        return bool((momentum[:, 7] == 0).all()), bool((momentum[:, 8] != 0).all())

    assert run_ranks(2, main) == [(True, True)] * 2


# One rank alone.


@pytest.mark.parametrize("legacy", [False, True])
def test_one_rank_alone_moves_its_momentum_at_every_step(legacy: bool) -> None:
    """0.19.6 left it where it was when the variance did not move."""

    def main(transport: LocalTransport) -> bool:
        rank = trained(transport, 4, var_freeze_step=100, legacy=legacy)
        before = rank.state("weight")["exp_avg"].clone()
        rank.train(seeded, [4])
        return not before.equal(rank.state("weight")["exp_avg"])

    assert run_ranks(1, main) == [not legacy]


# Names that old scripts use.


def test_old_names() -> None:
    def main(transport: LocalTransport) -> None:
        rank = trained(transport, FREEZE)
        optimizer = rank.optimizer
        assert optimizer.freeze_key is optimizer.var_freeze_key is True
        assert optimizer.var_freeze_step == FREEZE
        assert optimizer.using_pipeline is False
        schedule = {"var_interval", "var_counter", "local_step_interval", "local_step_counter"}
        kept = {"step", "exp_avg", "exp_avg_sq", "lrs", "momentum_accumulator"}
        assert rank.state("weight").keys() == schedule | kept
        optimizer.freeze_key = False
        assert rank.engine.enable_backward_allreduce
        optimizer.var_freeze_step = 7
        assert optimizer.var_freeze_step == 7

    run_ranks(2, main)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="var_freeze_step"):
        ZeroOneAdam([torch.nn.Parameter(torch.ones(3))], freeze_step=3)


def test_a_layer_that_is_unfrozen_between_averages_does_not_part_the_ranks() -> None:
    def main(transport: LocalTransport) -> list[dict[str, bytes]]:
        rank = Rank(transport, ZeroOneAdam, lr=1e-2, eps=1e-3, var_freeze_step=50, var_update_scaler=1)
        row = rank.engine.module["row"].requires_grad_(False)
        rank.train(seeded, range(5))
        assert not rank.optimizer.reduced
        row.requires_grad_(True)
        values = []
        for step in range(5, 12):
            rank.train(seeded, [step])
            values.append(rank.values())
        assert rank.moved("row").abs().max() > 0
        return values

    one, other = run_ranks(2, main)
    assert one == other
