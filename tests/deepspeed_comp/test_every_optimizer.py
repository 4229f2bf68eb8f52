"""What the three 1-bit optimizers have in common by default, and that 0.19.6's way (`legacy`) does otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, Transport, run_ranks
from gradwire.compressors.errors import TransportError
from gradwire.deepspeed_comp.onebit_adam import OneBitAdam
from gradwire.deepspeed_comp.onebit_lamb import OneBitLamb
from gradwire.deepspeed_comp.zero_one_adam import ZeroOneAdam

from ..support.momentum import (
    FREEZE,
    OPTIONS,
    SHAPES,
    Gradients,
    Rank,
    assert_replicas,
    assert_same,
    half,
    poisoned,
    seeded,
    without,
    zeros,
)

pytestmark = pytest.mark.usefixtures("_local_groups")


@dataclass(frozen=True)
class Kind:
    """An optimizer and how it is tried.

    Attributes:
        steps: after so many of them all ranks agree, and the variance is frozen.
        exchanges: numbers of steps after which the next one ends with an exchange, whatever the phase.
    """

    make: Any
    options: dict[str, Any]
    steps: int
    exchanges: tuple[int, ...]

    def trained(self, transport: Transport, steps: int, gradients: Gradients = seeded, **options: Any) -> Rank:
        rank = Rank(transport, self.make, **(self.options | options))
        rank.train(gradients, range(steps))
        return rank


ADAM = Kind(OneBitAdam, OPTIONS, 8, (1, FREEZE, FREEZE + 2))
LAMB = Kind(OneBitLamb, OPTIONS, 8, (1, FREEZE, FREEZE + 2))
#: the variance moves at steps 1, 2, 4; synchronisations end steps 6, 7, 8, 12
ZERO_ONE_OPTIONS = {"var_freeze_step": 5, "var_update_scaler": 2, "local_step_scaler": 2, "local_step_clipper": 4}
ZERO_ONE = Kind(ZeroOneAdam, {"lr": 1e-2, "eps": 1e-3, **ZERO_ONE_OPTIONS}, 12, (1, 2, 5, 11))
NEVER_FROZEN = Kind(ZeroOneAdam, ZERO_ONE.options | {"var_freeze_step": 1000}, 12, ())
KINDS = {"OneBitAdam": ADAM, "OneBitLamb": LAMB, "ZeroOneAdam": ZERO_ONE}

every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
both = pytest.mark.parametrize("legacy", [False, True])


@both
@every
def test_the_first_gradient_counts(kind: Kind, legacy: bool) -> None:
    """0.19.6 threw it away in fp32."""

    def main(transport: LocalTransport) -> float:
        return float(kind.trained(transport, 1, legacy=legacy).moved("weight").abs().max())

    moved = run_ranks(2, main)[0]
    assert moved == 0.0 if legacy else moved > 1e-3


@every
def test_the_call_with_zeros_that_deepspeeds_wrappers_make_changes_nothing(kind: Kind) -> None:
    def main(transport: LocalTransport) -> tuple[dict[str, bytes], dict[str, bytes]]:
        rank = kind.trained(transport, 1, zeros, weight_decay=0.1)
        rank.train(seeded, range(kind.steps))
        return rank.values(), kind.trained(transport, kind.steps, weight_decay=0.1).values()

    for with_call, plain in run_ranks(2, main):
        assert with_call == plain


@every
def test_a_parameter_without_gradient_on_one_rank_only(kind: Kind) -> None:
    """Collectives do not depend on it; 0.19.6's did, and ranks were left waiting."""
    gradients = without((1, "weight"))
    assert_replicas(run_ranks(2, lambda transport: kind.trained(transport, kind.steps, gradients).values()))
    with pytest.raises(TransportError):
        run_ranks(2, lambda transport: kind.trained(transport, kind.steps, gradients, legacy=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("name", "at"), [(name, at) for name, kind in KINDS.items() for at in kind.exchanges])
def test_a_gradient_that_is_not_finite_moves_nothing_on_any_rank(name: str, at: int, value: float) -> None:
    kind = KINDS[name]

    def main(transport: LocalTransport) -> None:
        rank = kind.trained(transport, at)
        before, kept = rank.values(), rank.optimizer.rank_state()
        coefficients = list(getattr(rank.optimizer, "lamb_coeffs", []))
        rank.train(poisoned(at, value), [at])
        assert rank.optimizer.overflow
        assert rank.values() == before
        assert rank.state("weight")["step"] == at
        assert not kept["residuals"] or assert_same(rank.optimizer.rank_state(), kept) is None
        assert list(getattr(rank.optimizer, "lamb_coeffs", [])) == coefficients
        rank.train(seeded, range(at + 1, at + 3))
        assert not rank.optimizer.overflow
        assert rank.values() == spared[transport.rank]

    def spare(transport: LocalTransport) -> dict[str, bytes]:
        rank = kind.trained(transport, at)
        rank.train(seeded, range(at + 1, at + 3))
        return rank.values()

    spared = run_ranks(2, spare)
    run_ranks(2, main)


@every
def test_a_finite_gradient_whose_square_is_not_is_an_overflow(kind: Kind) -> None:
    def huge(rank: int, step: int, name: str) -> torch.Tensor | None:
        grad = seeded(rank, step, name)
        return grad if grad is None or rank == 1 else grad * 1e22

    def main(transport: LocalTransport) -> None:
        rank = kind.trained(transport, 1)
        before = rank.values()
        rank.train(huge, [1])
        assert rank.optimizer.overflow
        assert rank.values() == before
        rank.train(seeded, range(2, 4))
        assert not rank.optimizer.overflow
        assert all(rank.state(name)["exp_avg_sq"].isfinite().all() for name in SHAPES)

    run_ranks(2, main)


@both
@pytest.mark.parametrize("kind", [*KINDS.values(), NEVER_FROZEN], ids=[*KINDS, "ZeroOneAdam, not frozen"])
def test_coordinates_that_never_saw_a_gradient_stay_where_they_are(kind: Kind, legacy: bool) -> None:
    def main(transport: LocalTransport) -> tuple[float, float]:
        rank = kind.trained(transport, 40, half, legacy=legacy, eps=1e-8)
        untouched = slice(SHAPES["weight"][0] // 2, None)
        moved = rank.moved("weight")[untouched].abs().max()
        return float(moved), float(rank.state("weight")["exp_avg"][untouched].abs().max())

    for moved, momentum in run_ranks(2, main):
        assert (moved > 1 and momentum > 0) if legacy else (moved, momentum) == (0.0, 0.0)


@every
def test_no_division_by_zero_without_eps(kind: Kind) -> None:
    def main(transport: LocalTransport) -> bool:
        rank = kind.trained(transport, kind.steps, half, eps=0.0, weight_decay=0.01)
        return all(bool(parameter.isfinite().all()) for parameter in rank.engine.module.values())

    assert run_ranks(2, main) == [True, True]


@both
@pytest.mark.parametrize("kind", [ADAM, LAMB], ids=["OneBitAdam", "OneBitLamb"])
@pytest.mark.parametrize("flat", [False, True])
def test_a_mask_keeps_momenta_at_zero(kind: Kind, flat: bool, legacy: bool) -> None:
    """As a group key; a 16-bit model's is flat."""
    mask = torch.ones(SHAPES["weight"])
    mask[:, 7] = 0

    def main(transport: LocalTransport) -> tuple[bool, bool]:
        def groups(module: Any) -> list[dict[str, Any]]:
            masked = {"params": [module["weight"]], "exp_avg_mask": mask.view(-1) if flat else mask}
            return [masked, {"params": [module["bias"], module["row"]]}]

        rank = Rank(transport, kind.make, groups, **kind.options, legacy=legacy)
        rank.train(seeded, range(kind.steps))
        momentum = rank.state("weight")["exp_avg"]
        return bool((momentum[:, 7] == 0).all()), bool((momentum[:, 8] != 0).all())

    assert run_ranks(2, main) == [(True, True)] * 2
