"""What ZeroOneAdam saves and loads: also between synchronisations, where every rank is somewhere else."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, Transport, run_ranks
from gradwire.deepspeed_comp.zero_one_adam import ZeroOneAdam

from ..support.momentum import SHAPES, Rank, assert_replicas, resumed, seeded
from . import zero_one

pytestmark = pytest.mark.usefixtures("_local_groups")

OPTIONS: dict[str, Any] = zero_one.OPTIONS | {"weight_decay": 0.01}
trained = partial(zero_one.trained, **OPTIONS)
#: steps after which ranks agree, and differ
FROZEN, BETWEEN = 8, 10


def gone_on(transport: Transport, one: Rank, first: int, then: int, **options: Any) -> Rank:
    rank = resumed(transport, one, **(OPTIONS | options))
    rank.train(seeded, range(first, first + then))
    return rank


@pytest.mark.parametrize("first", [1, 2, 3, 5, 6, FROZEN, BETWEEN, BETWEEN + 1, 13])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_resumed_training_goes_on_bit_for_bit(world_size: int, first: int) -> None:
    def main(transport: LocalTransport) -> tuple[dict[str, bytes], dict[str, bytes]]:
        return gone_on(transport, trained(transport, first), first, 5).values(), trained(transport, first + 5).values()

    for again, straight in run_ranks(world_size, main):
        assert again == straight


def as_rank_0(ranks: list[Rank], transport: Transport, **options: Any) -> Rank:
    """What DeepSpeed's checkpoint holds is rank 0's, the model too."""
    return resumed(transport, ranks[0], ranks=False, **(OPTIONS | options))


@pytest.mark.parametrize("first", [3, FROZEN, BETWEEN])
def test_the_state_of_one_rank_and_what_each_kept_make_the_whole(first: int) -> None:
    ranks = run_ranks(2, lambda transport: trained(transport, first))

    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = as_rank_0(ranks, transport)
        rank.optimizer.load_rank_state(copy.deepcopy(ranks[transport.rank].optimizer.rank_state()))
        rank.train(seeded, range(first, first + 5))
        return rank.values()

    assert run_ranks(2, main) == run_ranks(2, lambda transport: trained(transport, first + 5).values())


def test_at_a_synchronisation_ranks_keep_residuals_only() -> None:
    def main(transport: LocalTransport) -> list[set[str]]:
        return [set(trained(transport, steps).optimizer.rank_state()["own"]) for steps in (FROZEN, BETWEEN)]

    momenta = {f"{name}.{key}" for name in SHAPES for key in ("exp_avg", "momentum_accumulator")}
    assert run_ranks(2, main) == [[set(), momenta | SHAPES.keys()]] * 2


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(("first", "then"), [(4, 1), (6, 1), (FROZEN, 4), (BETWEEN, 2)])
def test_replicas_do_not_part_after_a_resume(first: int, then: int, legacy: bool) -> None:
    """From rank 0's state alone. 0.19.6 took local gradients for averages, before and after the freeze."""
    options: dict[str, Any] = {"legacy": legacy, "local_step_scaler": 1000} if legacy else {}
    ranks = run_ranks(2, lambda transport: trained(transport, first, **options))

    def main(transport: LocalTransport) -> torch.Tensor:
        rank = as_rank_0(ranks, transport, **options)
        rank.train(seeded, range(first, first + then + 2 * legacy))
        return rank.engine.module["weight"].detach()

    one, other = run_ranks(2, main)
    if legacy:
        assert float((one - other).abs().max()) > 1e-3
    else:
        assert one.equal(other)


def test_between_synchronisations_all_ranks_may_go_on_from_rank_0() -> None:
    ranks = run_ranks(2, lambda transport: trained(transport, BETWEEN))

    def main(transport: LocalTransport) -> dict[str, bytes]:
        return as_rank_0(ranks, transport).values()

    assert_replicas(run_ranks(2, main))
    assert run_ranks(2, main)[0] == ranks[0].values()


@pytest.mark.parametrize("now", [1, 3])
@pytest.mark.parametrize("first", [3, FROZEN, BETWEEN])
def test_at_another_world_size_ranks_go_on_from_where_their_mean_is(first: int, now: int) -> None:
    ranks = run_ranks(2, lambda transport: trained(transport, first))
    merged = ranks[0].optimizer.merge_rank_states([rank.optimizer.rank_state() for rank in ranks])

    def loaded(transport: LocalTransport) -> Rank:
        rank = as_rank_0(ranks, transport)
        rank.optimizer.load_rank_state(copy.deepcopy(merged))
        return rank

    begun = run_ranks(now, loaded)
    assert_replicas([rank.values() for rank in begun])
    expected = sum(rank.engine.module["weight"].detach() for rank in ranks) / 2
    torch.testing.assert_close(begun[0].engine.module["weight"].detach(), expected)

    def main(transport: LocalTransport) -> torch.Tensor:
        rank = loaded(transport)
        rank.train(seeded, range(first, 12))
        return rank.engine.module["weight"].detach()

    weights = run_ranks(now, main)
    assert all(weight.equal(weights[0]) for weight in weights)


def test_the_wrappers_model_is_restored_too() -> None:
    """A 16-bit model has parameters of its own; the optimizer's are flat copies."""

    def main(transport: LocalTransport) -> None:
        one = flattened(transport)
        flat = one.optimizer.param_groups[0]["params"][0]
        for step in range(BETWEEN):
            flat.grad = torch.full_like(flat, float(transport.rank + step + 1))
            one.optimizer.step()
        for parameter in one.engine.module.values():
            parameter.data.fill_(float(transport.rank + 7))
        other = flattened(transport)
        other.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
        other.optimizer.load_rank_state(copy.deepcopy(one.optimizer.rank_state()))
        assert other.optimizer.param_groups[0]["params"][0].equal(flat)
        assert all(bool((parameter == transport.rank + 7).all()) for parameter in other.engine.module.values())

    run_ranks(2, main)


def flattened(transport: Transport) -> Rank:
    flat = torch.nn.Parameter(torch.ones(2000))
    return Rank(transport, ZeroOneAdam, lambda module: [flat], **OPTIONS)


def test_flags_are_right_after_a_load() -> None:
    def main(transport: LocalTransport) -> None:
        for steps, frozen, reduced in ((1, False, True), (2, False, False), (3, False, True), (5, True, False)):
            saved = trained(transport, steps)
            for other in (trained(transport, 1), trained(transport, 2), trained(transport, 7)):
                other.optimizer.load_state_dict(copy.deepcopy(saved.optimizer.state_dict()))
                assert other.optimizer.frozen == frozen
                assert other.engine.enable_backward_allreduce == saved.engine.enable_backward_allreduce == reduced

    run_ranks(2, main)


@pytest.mark.parametrize("first", [4, FROZEN, 9, BETWEEN])
def test_an_old_checkpoint_goes_on_without_legacy(first: int) -> None:
    """Its local updates began nobody knows where, so that its parameters are where ranks agreed."""
    ranks = run_ranks(2, lambda transport: trained(transport, first, legacy=True))

    def main(transport: LocalTransport) -> torch.Tensor:
        rank = as_rank_0(ranks, transport)
        assert not rank.state("weight").keys() & {"worker_error", "server_error"}
        assert not rank.state("weight")["momentum_accumulator"].any() or not rank.optimizer.frozen
        while rank.state("weight")["step"] < 12:
            rank.train(seeded, [rank.state("weight")["step"]])
        assert rank.engine.module["weight"].isfinite().all()
        return rank.engine.module["weight"].detach()

    one, other = run_ranks(2, main)
    assert one.equal(other)


def test_back_before_the_freeze_ranks_are_together_again() -> None:
    """Though what each kept is of ranks that had parted."""
    ranks = run_ranks(2, lambda transport: trained(transport, BETWEEN))

    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = as_rank_0(ranks, transport, var_freeze_step=50)
        rank.optimizer.load_rank_state(copy.deepcopy(ranks[transport.rank].optimizer.rank_state()))
        assert not rank.optimizer.frozen
        rank.train(seeded, range(BETWEEN, 20))
        return rank.values()

    assert_replicas(run_ranks(2, main))


@pytest.mark.parametrize("first", [FROZEN, BETWEEN, BETWEEN + 1])
def test_weights_that_are_put_in_between_two_steps_stay(first: int) -> None:
    """As by a load of the model alone; also if the next step synchronises."""

    def main(transport: LocalTransport) -> torch.Tensor:
        rank = trained(transport, first)
        with torch.no_grad():
            for parameter in rank.engine.module.values():
                parameter.fill_(5.0)
        rank.train(seeded, range(first, 16))
        assert abs(float(rank.moved("weight").mean()) - 4) < 0.5
        return rank.engine.module["weight"].detach()

    one, other = run_ranks(2, main)
    assert one.equal(other)


def test_residuals_of_gradients_are_not_taken_for_those_of_updates() -> None:
    """Where `var_freeze_step` is lowered, or raised, with a load."""

    def main(transport: LocalTransport) -> list[bool]:
        kept = []
        for before, after in ((50, 5), (5, 50), (5, 5)):
            one = trained(transport, FROZEN, var_freeze_step=before)
            other = as_rank_0([one], transport, var_freeze_step=after)
            other.optimizer.load_rank_state(copy.deepcopy(one.optimizer.rank_state()))
            kept.append(bool(other.optimizer.rank_state()["residuals"]))
        return kept

    assert run_ranks(2, main) == [[False, False, True]] * 2


def test_a_state_without_a_schedule_gets_one() -> None:
    """As from an optimizer that knows step, momentum and variance only."""

    def main(transport: LocalTransport) -> dict[str, bytes]:
        rank = trained(transport, 1)
        for state in rank.optimizer.state.values():
            for key in state.keys() - {"step", "exp_avg", "exp_avg_sq"}:
                del state[key]
        return gone_on(transport, rank, 1, 11).values()

    straight = run_ranks(2, lambda transport: trained(transport, 12).values())
    assert all(one.keys() == other.keys() for one, other in zip(run_ranks(2, main), straight, strict=True))
    assert_replicas(run_ranks(2, main))
