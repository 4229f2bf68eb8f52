"""OneBitAdam on threads: what it does by default, and that DeepSpeed 0.19.6's way (`legacy`) does otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, run_ranks
from gradwire.deepspeed_comp.onebit_adam import OneBitAdam, OnebitAdam

from ..support.momentum import (
    FREEZE,
    LR,
    OPTIONS,
    SHAPES,
    PipelineEngine,
    Rank,
    assert_replicas,
    seeded,
    trained,
    zeros,
)
from ..support.reducing import bits, gradient

pytestmark = pytest.mark.usefixtures("_local_groups")

# The algorithm.


def reference(transport_count: int, steps: int, decay: float) -> torch.Tensor:
    """Adam without bias correction, in words of torch, on exact means; the variance freezes after FREEZE steps."""
    p, m, v = torch.ones(SHAPES["weight"]), torch.zeros(SHAPES["weight"]), torch.zeros(SHAPES["weight"])
    for step in range(steps):
        grads = [gradient("weight", SHAPES["weight"], rank, step) for rank in range(transport_count)]
        g = torch.stack(grads).mean(0)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g if step < FREEZE else v
        p = p - LR * (m / (v.sqrt() + 1e-3) + decay * p)
    return p


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_before_it_freezes_it_is_adam_without_bias_correction(world_size: int, decay: float) -> None:
    ranks = run_ranks(world_size, lambda transport: trained(transport, FREEZE, weight_decay=decay))
    for rank in ranks:
        torch.testing.assert_close(rank.engine.module["weight"].detach(), reference(world_size, FREEZE, decay))


def test_one_rank_alone_takes_plain_steps_after_the_freeze_too() -> None:
    (rank,) = run_ranks(1, lambda transport: trained(transport, 20, weight_decay=0.01))
    assert rank.optimizer.frozen
    torch.testing.assert_close(rank.engine.module["weight"].detach(), reference(1, 20, 0.01))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_replicas_stay_equal(world_size: int, legacy: bool) -> None:
    assert_replicas(run_ranks(world_size, lambda transport: trained(transport, 10, legacy=legacy).values()))


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_a_parameter_lacks_is_what_the_residuals_owe(world_size: int) -> None:
    """With d the error of the momentum and e the mean residual, x = exact x + lr (b1 d + e) / (1 - b1) / denominator.

    It follows from d_t = b1 d_(t-1) + e_(t-1) - e_t, summed over the steps.
    """
    steps = 30
    ranks = run_ranks(world_size, lambda transport: trained(transport, steps))
    (exact,) = run_ranks(1, lambda transport: trained(transport, steps, mean_of(world_size)))
    merged = ranks[0].optimizer.merge_rank_states([rank.optimizer.rank_state() for rank in ranks])
    owed = merged["residuals"]["dense"]["residuals"]["weight"].view(SHAPES["weight"])
    state, exact_state = ranks[0].state("weight"), exact.state("weight")
    denominator = state["exp_avg_sq"].sqrt() + OPTIONS["eps"]
    lacking = LR * (0.9 * (state["exp_avg"] - exact_state["exp_avg"]) + owed) / 0.1 / denominator
    expected = exact.engine.module["weight"] + lacking
    assert float(lacking.abs().max()) > 0.1
    torch.testing.assert_close(ranks[0].engine.module["weight"], expected, atol=1e-3, rtol=1e-4)


def mean_of(world_size: int) -> Any:
    def gradients(rank: int, step: int, name: str) -> torch.Tensor:
        return torch.stack([gradient(name, SHAPES[name], number, step) for number in range(world_size)]).mean(0)

    return gradients


# Flags.


@pytest.mark.parametrize("freeze_step", [0, 1, 2, 5])
def test_the_engine_stops_averaging_with_the_freeze(freeze_step: int) -> None:
    def main(transport: LocalTransport) -> list[tuple[bool, bool]]:
        rank, flags = Rank(transport, OneBitAdam, **(OPTIONS | {"freeze_step": freeze_step})), []
        for step in range(7):
            rank.train(seeded, [step])
            flags.append((rank.optimizer.frozen, rank.engine.enable_backward_allreduce))
        return flags

    first = max(1, freeze_step)
    assert run_ranks(2, main)[0] == [(step + 1 >= first, step + 1 < first) for step in range(7)]


def test_the_variance_is_frozen() -> None:
    def main(transport: LocalTransport) -> tuple[bytes, bytes]:
        rank = trained(transport, FREEZE)
        before = bits(rank.state("weight")["exp_avg_sq"])
        rank.train(seeded, range(FREEZE, FREEZE + 4))
        return before, bits(rank.state("weight")["exp_avg_sq"])

    for before, after in run_ranks(2, main):
        assert before == after


def test_a_pipeline_engine_has_a_flag_of_its_own_which_comes_late() -> None:
    def main(transport: LocalTransport) -> tuple[bool, bool]:
        engine: Any = PipelineEngine(transport)
        optimizer: Any = OneBitAdam(engine.module.parameters(), engine, **OPTIONS)
        engine.ready()
        for step in range(FREEZE):
            assert engine.pipeline_enable_backward_allreduce
            engine.backward(seeded, step)
            optimizer.step()
        assert not engine.pipeline_enable_backward_allreduce
        optimizer.adam_freeze_key = False
        return engine.pipeline_enable_backward_allreduce, engine.enable_backward_allreduce

    assert run_ranks(2, main) == [(True, False)] * 2


def test_old_names() -> None:
    def main(transport: LocalTransport) -> None:
        optimizer = trained(transport, FREEZE).optimizer
        assert optimizer.adam_freeze_key is True
        assert optimizer.freeze_step == FREEZE
        assert optimizer.using_pipeline is False
        assert {"step", "exp_avg", "exp_avg_sq"} <= optimizer.state[optimizer.param_groups[0]["params"][0]].keys()

    assert OnebitAdam is OneBitAdam
    run_ranks(2, main)


# First calls.


def test_later_zeros_are_gradients() -> None:
    def main(transport: LocalTransport) -> int:
        rank = trained(transport, 2)
        rank.train(zeros, range(2))
        return rank.state("weight")["step"]

    assert run_ranks(2, main) == [4, 4]


# Learning rate, messages, refusals.


def test_a_learning_rate_of_zero_moves_no_parameter() -> None:
    def main(transport: LocalTransport) -> bytes:
        return bits(trained(transport, 8, lr=0.0, weight_decay=0.1).engine.module["weight"])

    assert set(run_ranks(2, main)) == {bits(torch.ones(SHAPES["weight"]))}


@pytest.mark.parametrize(("world_size", "expected"), [(2, 1), (3, 2)])
def test_a_frozen_step_is_one_exchange(world_size: int, expected: int) -> None:
    """0.19.6 took four collectives per parameter."""
    names: set[str] = set()

    def main(transport: LocalTransport) -> None:
        rank = trained(transport, FREEZE + 2)
        transport.barrier("before", 20)
        names.clear()
        transport.barrier("after", 20)
        rank.train(seeded, [FREEZE + 2])

    run_ranks(world_size, main, hook=lambda rank, name: names.add(name))
    assert len(names - {"after"}) == expected, names


def test_a_closure_is_called_with_gradients_on() -> None:
    def main(transport: LocalTransport) -> float:
        rank = Rank(transport, OneBitAdam, **OPTIONS)
        module = rank.engine.module

        def closure() -> float:
            loss = torch.stack([parameter.square().sum() for parameter in module.values()]).sum()
            loss.backward()
            return float(loss.detach())

        return rank.optimizer.step(closure)

    assert run_ranks(1, main)[0] == 40 * 60 + 11 + 3 * 700


def test_a_group_that_is_added_later_does_not_put_the_freeze_off() -> None:
    """A resumed training, which goes by the steps that were loaded, would freeze earlier otherwise."""

    def main(transport: LocalTransport) -> int:
        rank = Rank(transport, OneBitAdam, lambda module: [module["weight"], module["row"]], **OPTIONS)
        rank.train(seeded, range(1))
        rank.optimizer.add_param_group({"params": [rank.engine.module["bias"]]})
        step = 1
        while not rank.optimizer.frozen:
            rank.train(seeded, [step])
            step += 1
        return step

    assert run_ranks(2, main) == [FREEZE] * 2
