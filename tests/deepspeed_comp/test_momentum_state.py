"""What the 1-bit optimizers save and load: by default a resumed training goes on as if nothing had been."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, run_ranks
from gradwire.compressors.errors import ConfigError
from gradwire.deepspeed_comp.onebit_adam import OneBitAdam

from ..support.momentum import (
    FREEZE,
    OPTIONS,
    SHAPES,
    Rank,
    assert_replicas,
    assert_same,
    seeded,
    trained,
)

pytestmark = pytest.mark.usefixtures("_local_groups")


def resumed(transport: LocalTransport, first: int, then: int, ranks: bool = True, **options: Any) -> Rank:
    """Train, save, and go on in a new process."""
    one = trained(transport, first, **options)
    other = Rank(transport, OneBitAdam, **(OPTIONS | options))
    with torch.no_grad():
        for name, parameter in one.engine.module.items():
            other.engine.module[name].copy_(parameter)
    other.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    if ranks:
        other.optimizer.load_rank_state(copy.deepcopy(one.optimizer.rank_state()))
    other.train(seeded, range(first, first + then))
    return other


@pytest.mark.parametrize("first", [1, FREEZE, FREEZE + 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_resumed_training_goes_on_bit_for_bit(world_size: int, first: int) -> None:
    def main(transport: LocalTransport) -> tuple[dict[str, bytes], dict[str, bytes]]:
        return resumed(transport, first, 5).values(), trained(transport, first + 5).values()

    for again, straight in run_ranks(world_size, main):
        assert again == straight


@pytest.mark.parametrize("legacy", [False, True])
def test_replicas_do_not_part_after_a_resume(legacy: bool) -> None:
    """Without the residuals, as from an old checkpoint. 0.19.6 took a step with local gradients."""

    def main(transport: LocalTransport) -> dict[str, bytes]:
        return resumed(transport, FREEZE + 3, 4, ranks=False, legacy=legacy).values()

    values = run_ranks(2, main)
    if legacy:
        assert values[0] != values[1]
    else:
        assert_replicas(values)


@pytest.mark.parametrize("legacy", [False, True])
def test_such_a_resume_of_legacy_is_announced(legacy: bool, caplog: pytest.LogCaptureFixture) -> None:
    def main(transport: LocalTransport) -> None:
        state = trained(transport, FREEZE, legacy=legacy).optimizer.state_dict()
        other = Rank(transport, OneBitAdam, **OPTIONS, legacy=legacy)
        other.engine.global_rank = transport.rank
        other.optimizer.load_state_dict(state)

    with caplog.at_level(logging.INFO, logger="gradwire"):
        run_ranks(2, main)
    lines = [record.message for record in caplog.records if "replicas part" in record.message]
    assert len(lines) == (1 if legacy else 0)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_loaded_momentum_is_not_quantised(legacy: bool) -> None:
    def main(transport: LocalTransport) -> tuple[int, int]:
        before = trained(transport, FREEZE, legacy=legacy).state("bias")["exp_avg"].abs().unique().numel()
        after = resumed(transport, FREEZE, 1, legacy=legacy).state("bias")["exp_avg"].abs().unique().numel()
        return before, after

    for before, after in run_ranks(2, main):
        assert after < before if legacy else after == before == SHAPES["bias"][0]


def test_flags_are_right_after_a_load() -> None:
    def main(transport: LocalTransport) -> None:
        warm, cold = trained(transport, FREEZE - 1), trained(transport, FREEZE)
        for saved, frozen in ((cold, True), (warm, False), (cold, True)):
            other = trained(transport, 5 if saved is warm else 1)
            other.optimizer.load_state_dict(copy.deepcopy(saved.optimizer.state_dict()))
            assert (other.optimizer.frozen, other.engine.enable_backward_allreduce) == (frozen, not frozen)

    run_ranks(2, main)


def test_masks_are_the_scripts_own() -> None:
    def main(transport: LocalTransport) -> None:
        mask = torch.ones(SHAPES["weight"])

        def groups(module: Any) -> list[dict[str, Any]]:
            return [{"params": [module["weight"]]}, {"params": [module["bias"], module["row"]]}]

        masked = Rank(transport, OneBitAdam, groups, **OPTIONS)
        masked.optimizer.param_groups[0]["exp_avg_mask"] = mask
        masked.train(seeded, range(2))
        plain = Rank(transport, OneBitAdam, groups, **OPTIONS)
        saved = masked.optimizer.state_dict()
        plain.optimizer.load_state_dict(saved)
        assert "exp_avg_mask" not in plain.optimizer.param_groups[0]
        assert "exp_avg_mask" in saved["param_groups"][0]
        other = torch.zeros(SHAPES["weight"])
        masked.optimizer.param_groups[0]["exp_avg_mask"] = other
        masked.optimizer.load_state_dict(saved)
        assert masked.optimizer.param_groups[0]["exp_avg_mask"].equal(other)

    run_ranks(2, main)


def test_errors_of_an_old_checkpoint_are_dropped() -> None:
    def main(transport: LocalTransport) -> set[str]:
        old = trained(transport, FREEZE + 2, legacy=True)
        assert "worker_error" in old.state("weight")
        new = trained(transport, 1)
        new.optimizer.load_state_dict(old.optimizer.state_dict())
        new.train(seeded, range(FREEZE + 2, FREEZE + 4))
        return set(new.state("weight"))

    for keys in run_ranks(2, main):
        assert not keys & {"worker_error", "server_error"}


@pytest.mark.parametrize("now", [1, 3])
def test_at_another_world_size_mean_residuals_go_on(now: int) -> None:
    """x - lr * mean(e) stays what it was, so that the law of error feedback goes on from there."""
    before = run_ranks(2, lambda transport: trained(transport, FREEZE + 4))
    states = [rank.optimizer.rank_state() for rank in before]
    merged = before[0].optimizer.merge_rank_states(states)
    owed = sum(state["residuals"]["dense"]["residuals"]["weight"] for state in states) / 2
    torch.testing.assert_close(merged["residuals"]["dense"]["residuals"]["weight"], owed)

    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = Rank(transport, OneBitAdam, **OPTIONS)
        rank.optimizer.load_state_dict(copy.deepcopy(before[0].optimizer.state_dict()))
        rank.optimizer.load_rank_state(copy.deepcopy(merged))
        assert_same(rank.optimizer.rank_state(), merged)
        rank.train(seeded, range(FREEZE + 4, FREEZE + 7))
        return rank.values()

    assert_replicas(run_ranks(now, main))


def test_what_was_merged_and_saved_before_an_exchange_is_merged_already() -> None:
    """As where a job is moved twice within a few steps."""
    before = run_ranks(2, lambda transport: trained(transport, FREEZE + 4))
    optimizer = before[0].optimizer
    merged = optimizer.merge_rank_states([rank.optimizer.rank_state() for rank in before])
    assert_same(optimizer.merge_rank_states([copy.deepcopy(merged) for _ in range(3)]), merged)


def test_residuals_of_different_parameters_are_not_merged() -> None:
    states = [{"residuals": {"ep_size_2": {"world_size": 1}}}] * 2
    with pytest.raises(ConfigError, match="of 2 ranks cannot be redistributed: their ep_size_2"):
        OneBitAdam([torch.nn.Parameter(torch.ones(3))]).merge_rank_states(states)
