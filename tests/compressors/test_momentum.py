"""Momentum correction: momentum before the compression, and none of what was sent stays in it."""

from __future__ import annotations

import pytest
import torch
from gradwire import Compressor, ConfigError, ErrorFeedback, Int8, OneBit, RandomK, SizePolicy, State, TopK
from gradwire.compressors import kernels
from gradwire.compressors.momentum import MomentumCorrection
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import context, make_values

SPARSE: list[Compressor] = [
    TopK(ratio=0.1),
    TopK(ratio=0.1, values=Int8(block=16)),
    TopK(ratio=0.2, sampled=True),
    RandomK(ratio=0.1),
    SizePolicy(TopK(ratio=0.1), min_numel=0, min_ndim=0),
]
N = 1000


def gradients(steps: int, seed: int = 0) -> list[torch.Tensor]:
    return [make_values("normal", N, seed=100 * seed + step) for step in range(steps)]


def sent(codec: Compressor, payload: torch.Tensor, x: torch.Tensor, step: int) -> torch.Tensor:
    return codec.decompress(payload, context(x, step=step), torch.empty(x.numel()))


@pytest.mark.parametrize("codec", SPARSE, ids=repr)
@given(seed=st.integers(0, 99), momentum=st.sampled_from([0.5, 0.9, 1.0]))
def test_it_is_the_papers_arithmetic(codec: Compressor, seed: int, momentum: float) -> None:
    """u = m u + x, v = v + u, sparsified; what was sent is left in neither."""
    wrapped, state = MomentumCorrection(codec, momentum=momentum), {}
    u, v = torch.zeros(N), torch.zeros(N)
    for step, x in enumerate(gradients(4, seed)):
        result = wrapped.compress(x, state, context(x, step=step))
        state = result.state
        u = x + torch.tensor(momentum) * u
        v = v + u
        gone = sent(wrapped, result.payload, x, step)
        u[gone != 0] = 0
        v = v - gone
        assert torch.equal(state["momentum"], u)
        assert torch.allclose(state["residual"], v, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("codec", [OneBit(block=8), Int8()], ids=repr)
def test_quantizers_send_something_of_everything_and_mask_nothing(codec: Compressor) -> None:
    wrapped, state, u = MomentumCorrection(codec), {}, torch.zeros(N)
    for step, x in enumerate(gradients(3)):
        state = wrapped.compress(x, state, context(x, step=step)).state
        u = x + torch.tensor(0.9) * u
        assert torch.equal(state["momentum"], u)


@pytest.mark.parametrize("codec", SPARSE, ids=repr)
@pytest.mark.parametrize("reference", [False, True])
def test_a_step_that_is_dropped_leaves_no_trace(codec: Compressor, reference: bool) -> None:
    """Taken again from the old state, a step gives the same bits, whatever was tried in between."""
    wrapped = MomentumCorrection(codec)
    with kernels.reference_only(reference):
        states: list[State] = [{}]
        for step, x in enumerate(gradients(3)):
            before = {key: value.clone() for key, value in states[-1].items() if key != "spare"}
            tried = wrapped.compress(make_values("heavy", N, seed=step), states[-1], context(x, step=step))
            assert tried.finite
            assert all(torch.equal(states[-1][key], value) for key, value in before.items())
            first = wrapped.compress(x, states[-1], context(x, step=step))
            payload = first.payload.clone()
            again = wrapped.compress(x, before, context(x, step=step))
            assert torch.equal(payload, again.payload)
            states.append(first.state)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(broken: float) -> None:
    wrapped, x = MomentumCorrection(TopK(ratio=0.1)), make_values("normal", N, seed=1)
    before = wrapped.compress(x, {}, context(x)).state
    kept = {key: value.clone() for key, value in before.items()}
    bad = x.clone()
    bad[7] = broken
    result = wrapped.compress(bad, before, context(bad, step=1))
    assert result.finite is False
    assert result.state is before
    assert all(torch.equal(before[key], value) for key, value in kept.items())


def test_after_two_steps_nothing_is_allocated_for_the_momentum() -> None:
    wrapped, x = MomentumCorrection(TopK(ratio=0.1)), make_values("normal", N, seed=1)
    state, places = {}, []
    for step in range(6):
        state = wrapped.compress(x, state, context(x, step=step)).state
        places.append(state["momentum"].data_ptr())
    assert len(set(places)) == 2


@pytest.mark.parametrize("momentum", [0, -0.1, 1.1, float("nan"), "0.9", None])
def test_a_momentum_out_of_range_is_refused(momentum: object) -> None:
    with pytest.raises(ConfigError, match=r"momentum is .*, expected a number in \(0, 1\]"):
        MomentumCorrection(TopK(), momentum=momentum)  # pyright: ignore[reportArgumentType] - wrong on purpose


def test_a_residual_inside_is_refused() -> None:
    with pytest.raises(ConfigError, match="which has a residual already; wrap the codec"):
        MomentumCorrection(ErrorFeedback(TopK()))
