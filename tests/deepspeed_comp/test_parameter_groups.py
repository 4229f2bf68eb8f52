"""Parameter groups of the 1-bit optimizers: what they may have, when they may come, what ranks compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, run_ranks
from gradwire.compressors.errors import ConfigError, MismatchError, UsageError
from gradwire.deepspeed_comp.momentum import MomentumOptimizer
from gradwire.deepspeed_comp.onebit_adam import OneBitAdam
from gradwire.deepspeed_comp.onebit_lamb import OneBitLamb
from gradwire.deepspeed_comp.zero_one_adam import ZeroOneAdam

from ..support.momentum import FREEZE, SHAPES, Rank, assert_replicas, resumed, seeded

pytestmark = pytest.mark.usefixtures("_local_groups")

OPTIONS: dict[type[MomentumOptimizer], dict[str, Any]] = {
    OneBitAdam: {"eps": 1e-3, "freeze_step": FREEZE},
    OneBitLamb: {"eps": 1e-3, "freeze_step": FREEZE},
    ZeroOneAdam: {"eps": 1e-3, "var_freeze_step": FREEZE, "local_step_scaler": 2},
}
KINDS = pytest.mark.parametrize("kind", OPTIONS)


def rank_with(transport: LocalTransport, kind: type[MomentumOptimizer], **of_weight: Any) -> Rank:
    """The weight is in a group of its own."""

    def groups(module: Any) -> list[dict[str, Any]]:
        return [{"params": [module["bias"], module["row"]]}, {"params": [module["weight"]], **of_weight}]

    return Rank(transport, kind, groups, **OPTIONS[kind])


# What a group may have.


@KINDS
@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"betas": (0.9, 1.0)}, "group 1: .*betas"),
        ({"lr": -1.0}, "group 1: .*lr is -1.0"),
        ({"eps": float("nan")}, "group 1: .*eps"),
        ({"amsgrad": True}, "group 1: amsgrad is true|group 1: .*amsgrad is true"),
        ({"max_grad_norm": 1.0}, "group 1: .*gradient_clipping"),
        ({"comm_backend_name": "mpi"}, "group 1 has comm_backend_name = 'mpi', which is one for the whole optimizer"),
        ({"legacy": True}, "group 1 has legacy = True"),
    ],
)
def test_a_setting_that_a_group_cannot_have_is_refused(
    kind: type[MomentumOptimizer], setting: dict[str, Any], text: str
) -> None:
    def main(transport: LocalTransport) -> None:
        with pytest.raises(ConfigError, match=text):
            rank_with(transport, kind, **setting)

    run_ranks(1, main)


@KINDS
def test_a_refused_group_is_not_added(kind: type[MomentumOptimizer]) -> None:
    def main(transport: LocalTransport) -> None:
        optimizer = Rank(transport, kind, **OPTIONS[kind]).optimizer
        before = list(optimizer.param_groups)
        with pytest.raises(ConfigError, match="group 1"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], "lr": -1.0})
        assert optimizer.param_groups == before

    run_ranks(1, main)


@KINDS
def test_groups_have_settings_of_their_own(kind: type[MomentumOptimizer]) -> None:
    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = rank_with(transport, kind, lr=0.0, betas=[0.8, 0.9], eps=1, weight_decay=0.1, initial_lr=0.5)
        rank.train(seeded, range(FREEZE + 3))
        assert not rank.moved("weight").any()
        assert rank.moved("row").any()
        return rank.values()

    assert_replicas(run_ranks(2, main))


# What ranks compare.


def test_groups_that_differ_between_ranks_are_an_error_in_the_first_step() -> None:
    mask = torch.ones(SHAPES["weight"])
    other = mask.clone()
    other[1, 2] = 0
    settings: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"non_freeze": True}),
        ({"lr": 0.1}, {"lr": 0.2}),
        ({"betas": (0.9, 0.99)}, {"betas": (0.9, 0.999)}),
        ({"exp_avg_mask": mask}, {}),
        ({"exp_avg_mask": mask}, {"exp_avg_mask": other}),
    ]

    def main(transport: LocalTransport) -> None:
        for pair in settings:
            rank = rank_with(transport, OneBitAdam, **pair[transport.rank])
            with pytest.raises(MismatchError, match=r"rank 0 has «parameter group 1: .*rank 1 has «parameter group 1"):
                rank.train(seeded, [0])
            assert not rank.moved("weight").any()

    run_ranks(2, main)


@KINDS
def test_parameters_that_differ_between_ranks_are_an_error_in_the_first_step(kind: type[MomentumOptimizer]) -> None:
    changes: list[Callable[[Any], Any]] = [
        lambda module: module["row"].requires_grad_(False),
        lambda module: module.pop("row"),
        lambda module: module.update({"row": torch.nn.Parameter(torch.ones(3, 701))}),
        lambda module: module.update({"row": torch.nn.Parameter(torch.ones(3, 700, dtype=torch.bfloat16))}),
    ]

    def main(transport: LocalTransport) -> None:
        for change in changes:

            def groups(module: Any, change: Callable[[Any], Any] = change) -> list[torch.Tensor]:
                if transport.rank == 1:
                    change(module)
                return list(module.parameters())

            rank = Rank(transport, kind, groups, **OPTIONS[kind])
            for parameter in rank.engine.module.values():
                parameter.grad = torch.ones_like(parameter)
            with pytest.raises(MismatchError, match="«parameter "):
                rank.optimizer.step()

    run_ranks(2, main)


# Groups and layers that come later.


@KINDS
@pytest.mark.parametrize("late", ["group", "layer"])
def test_what_comes_after_the_freeze_is_refused_since_it_would_never_move(
    kind: type[MomentumOptimizer], late: str
) -> None:
    def main(transport: LocalTransport) -> None:
        rank = Rank(transport, kind, lambda module: [module["weight"], module["bias"]], **OPTIONS[kind])
        if late == "layer":
            rank.optimizer.add_param_group({"params": [rank.engine.module["row"].requires_grad_(False)]})
        rank.train(seeded, range(FREEZE + 1))
        before = rank.values()
        row = rank.engine.module["row"].requires_grad_(True)

        def go_on() -> None:
            if late == "group":
                rank.optimizer.add_param_group({"params": [row]})
            else:
                rank.train(seeded, [FREEZE + 1])

        with pytest.raises(UsageError, match=f"frozen at step {FREEZE}, and would never move"):
            go_on()
        assert rank.values() == before

    run_ranks(2, main)


@KINDS
def test_a_group_may_come_before_the_freeze(kind: type[MomentumOptimizer]) -> None:
    def main(transport: LocalTransport) -> None:
        rank = Rank(transport, kind, lambda module: [module["weight"], module["bias"]], **OPTIONS[kind])
        rank.train(seeded, range(FREEZE - 1))
        rank.optimizer.add_param_group({"params": [rank.engine.module["row"]]})
        rank.train(seeded, range(FREEZE - 1, FREEZE + 3))
        assert rank.moved("row").any()

    run_ranks(2, main)


def test_a_group_that_never_freezes_may_come_at_any_time() -> None:
    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = Rank(transport, OneBitAdam, lambda module: [module["weight"], module["bias"]], **OPTIONS[OneBitAdam])
        rank.train(seeded, range(FREEZE + 1))
        rank.optimizer.add_param_group({"params": [rank.engine.module["row"]], "non_freeze": True})
        rank.train(seeded, range(FREEZE + 1, FREEZE + 4))
        assert rank.moved("row").any()
        return rank.values()

    assert_replicas(run_ranks(2, main))


@KINDS
def test_a_layer_may_be_frozen_after_the_variance_is_and_the_training_resumed(kind: type[MomentumOptimizer]) -> None:
    first, then = range(FREEZE + 3), range(FREEZE + 3, FREEZE + 6)

    def main(transport: LocalTransport) -> tuple[dict[str, bytes], dict[str, bytes]]:
        rank = Rank(transport, kind, **OPTIONS[kind])
        rank.train(seeded, first)
        rank.engine.module["row"].requires_grad_(False)
        rank.train(seeded, then)
        other = resumed(transport, rank, **OPTIONS[kind])
        other.engine.module["row"].requires_grad_(False)
        for one in (rank, other):
            one.train(seeded, range(FREEZE + 6, FREEZE + 9))
        return rank.values(), other.values()

    for whole, parted in run_ranks(2, main):
        assert whole == parted


# What is loaded.


@pytest.mark.parametrize("kind", [OneBitAdam, ZeroOneAdam])
def test_a_state_of_another_optimizer_is_refused(kind: type[MomentumOptimizer]) -> None:
    def main(transport: LocalTransport) -> None:
        rank = Rank(transport, kind, **OPTIONS[kind])
        rank.train(seeded, range(2))
        lamb = Rank(transport, OneBitLamb, **OPTIONS[OneBitLamb])
        with pytest.raises(ConfigError, match=r"another optimizer: for parameter 0 .*lamb_coeff_freeze, last_factor"):
            lamb.optimizer.load_state_dict(rank.optimizer.state_dict())
        assert not lamb.optimizer.state

    run_ranks(2, main)


@KINDS
def test_a_state_of_another_model_is_refused(kind: type[MomentumOptimizer]) -> None:
    def main(transport: LocalTransport) -> None:
        rank = Rank(transport, kind, **OPTIONS[kind])
        rank.train(seeded, range(2))
        state = rank.optimizer.state_dict()
        state["state"][1]["exp_avg"] = torch.zeros(5)
        with pytest.raises(ConfigError, match=r"another model: for parameter 1 it has a momentum of shape \(5,\)"):
            Rank(transport, kind, **OPTIONS[kind]).optimizer.load_state_dict(state)

    run_ranks(2, main)
