"""What OneBitLamb shows old scripts, saves and loads."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, Transport, run_ranks
from gradwire.deepspeed_comp.onebit_lamb import OneBitLamb, OnebitLamb

from ..support.momentum import (
    FREEZE,
    OPTIONS,
    SHAPES,
    Rank,
    assert_replicas,
    resumed,
    seeded,
)
from ..support.momentum import trained as train

pytestmark = pytest.mark.usefixtures("_local_groups")

trained = partial(train, make=OneBitLamb)


def loaded(transport: Transport, one: Rank, *, ranks: bool, **options: Any) -> Rank:
    return resumed(transport, one, ranks=ranks, **(OPTIONS | options))


def test_old_names() -> None:
    def main(transport: LocalTransport) -> None:
        optimizer = trained(transport, FREEZE + 1).optimizer
        assert optimizer.lamb_freeze_key is True
        assert optimizer.freeze_step == FREEZE
        assert optimizer.using_pipeline is False
        assert len(optimizer.worker_errors) == 2  # the bias is sent as it is
        assert optimizer.server_errors == []  # ranks in pairs encode once
        state = optimizer.state[optimizer.param_groups[0]["params"][0]]
        assert state.keys() == {
            *("step", "exp_avg", "exp_avg_sq", "exp_avg_sq_fresh"),
            *("lamb_coeff_freeze", "last_factor", "scaling_coeff"),
        }
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert optimizer.worker_errors == optimizer.server_errors == []
        optimizer.lamb_freeze_key = False
        assert optimizer.deepspeed.enable_backward_allreduce

    assert OnebitLamb is OneBitLamb
    run_ranks(2, main)


def test_legacy_keeps_its_errors_in_one_buffer() -> None:
    def main(transport: LocalTransport) -> None:
        optimizer = trained(transport, FREEZE + 1, legacy=True).optimizer
        numel = sum(torch.Size(shape).numel() for shape in SHAPES.values())
        padded = -(-numel // 16) * 16
        assert [error.numel() for error in optimizer.worker_errors] == [padded]
        assert [error.numel() for error in optimizer.server_errors] == [padded // 2]
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert optimizer.worker_errors == optimizer.server_errors == []

    run_ranks(2, main)


def test_coefficients_are_handed_out_as_copies() -> None:
    def main(transport: LocalTransport) -> None:
        rank = trained(transport, 1)
        held = rank.optimizer.get_lamb_coeffs()
        assert len(held) == len(SHAPES)
        rank.train(seeded, [1])
        assert len(held) == len(SHAPES)
        assert held != rank.optimizer.get_lamb_coeffs()
        held.clear()
        assert len(rank.optimizer.lamb_coeffs) == len(SHAPES)

    run_ranks(2, main)
    bare = OneBitLamb.__new__(OneBitLamb)
    bare.lamb_coeffs = [1.0, 2.0]
    assert bare.get_lamb_coeffs() == [1.0, 2.0]


@pytest.mark.parametrize("first", [1, FREEZE - 1, FREEZE, FREEZE + 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_resumed_training_goes_on_bit_for_bit(world_size: int, first: int) -> None:
    def main(transport: LocalTransport) -> tuple[dict[str, bytes], dict[str, bytes]]:
        rank = loaded(transport, trained(transport, first), ranks=True)
        rank.train(seeded, range(first, first + 5))
        return rank.values(), trained(transport, first + 5).values()

    for again, straight in run_ranks(world_size, main):
        assert again == straight


@pytest.mark.parametrize("legacy", [False, True])
def test_replicas_do_not_part_after_a_resume(legacy: bool) -> None:
    """Without the residuals, as from an old checkpoint. 0.19.6 took a step with local gradients."""

    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = loaded(transport, trained(transport, FREEZE + 3, legacy=legacy), ranks=False, legacy=legacy)
        rank.train(seeded, range(FREEZE + 3, FREEZE + 7))
        return rank.values()

    values = run_ranks(2, main)
    if legacy:
        assert values[0] != values[1]
    else:
        assert_replicas(values)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_loaded_momentum_is_not_quantised(legacy: bool) -> None:
    def main(transport: LocalTransport) -> int:
        rank = loaded(transport, trained(transport, FREEZE, legacy=legacy), ranks=True, legacy=legacy)
        rank.train(seeded, [FREEZE])
        return rank.state("bias")["exp_avg"].abs().unique().numel()

    for magnitudes in run_ranks(2, main):
        assert magnitudes < SHAPES["bias"][0] if legacy else magnitudes == SHAPES["bias"][0]


def test_an_old_checkpoint_goes_on_without_legacy() -> None:
    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = loaded(transport, trained(transport, FREEZE + 3, legacy=True), ranks=False)
        assert rank.optimizer.frozen
        scales = {name: rank.state(name)["scaling_coeff"] for name in SHAPES}
        rank.train(seeded, range(FREEZE + 3, FREEZE + 7))
        assert scales == {name: rank.state(name)["scaling_coeff"] for name in SHAPES}
        return rank.values()

    assert_replicas(run_ranks(2, main))


@pytest.mark.parametrize("legacy", [False, True])
def test_back_before_the_freeze_ratios_begin_anew(legacy: bool) -> None:
    def main(transport: LocalTransport) -> None:
        one = trained(transport, FREEZE + 3, legacy=legacy)
        late = loaded(transport, one, ranks=False, legacy=legacy, freeze_step=20)
        assert not late.optimizer.frozen
        for name in SHAPES:
            assert (late.state(name)["lamb_coeff_freeze"], late.state(name)["last_factor"]) == (0.0, 1.0)
            assert "scaling_coeff" not in late.state(name)

    run_ranks(2, main)


def test_a_freeze_that_comes_with_the_load_begins_as_any_other() -> None:
    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = loaded(transport, trained(transport, FREEZE - 1), ranks=True, freeze_step=1)
        rank.train(seeded, [FREEZE - 1])
        state = rank.state("weight")
        assert (state["exp_avg_sq_fresh"] >= 0.998 * state["exp_avg_sq"]).all()
        return rank.values()

    assert_replicas(run_ranks(2, main))


@pytest.mark.parametrize("now", [1, 3])
def test_at_another_world_size_mean_residuals_go_on(now: int) -> None:
    before = run_ranks(2, lambda transport: trained(transport, FREEZE + 4))
    merged = before[0].optimizer.merge_rank_states([rank.optimizer.rank_state() for rank in before])

    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = loaded(transport, before[0], ranks=False)
        rank.optimizer.load_rank_state(copy.deepcopy(merged))
        rank.train(seeded, range(FREEZE + 4, FREEZE + 7))
        return rank.values()

    assert_replicas(run_ranks(now, main))
