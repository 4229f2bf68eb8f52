"""Momentum correction: momentum before the compression, and none of what was sent stays in it."""

from __future__ import annotations

import pytest
import torch
from gradwire import (
    Compressor,
    ConfigError,
    ErrorFeedback,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    SizePolicy,
    State,
    TopK,
    UsageError,
    with_defaults,
)
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
            before = {key: value.clone() for key, value in states[-1].items()}
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


def test_states_that_were_handed_out_never_change() -> None:
    """Neither those of earlier steps, nor two that come of the same one."""
    wrapped, states = MomentumCorrection(TopK(ratio=0.1)), [{}]
    for step, x in enumerate(gradients(5)):
        states.append(wrapped.compress(x, states[-1], context(x, step=step)).state)
        states.append(wrapped.compress(2 * x, states[-2], context(x, step=step)).state)
    kept = [{key: value.clone() for key, value in state.items()} for state in states]
    x = make_values("heavy", N, seed=9)
    for state in states:
        wrapped.compress(x, state, context(x, step=9))
    assert all(torch.equal(state[key], old[key]) for state, old in zip(states, kept, strict=True) for key in old)


@pytest.mark.parametrize("entry", ["residual", "momentum"])
@pytest.mark.parametrize("shift", [0, 7])
def test_scratch_that_the_old_state_needs_is_refused(entry: str, shift: int) -> None:
    wrapped, x = MomentumCorrection(TopK(ratio=0.1)), make_values("normal", N, seed=1)
    state = wrapped.compress(x, {}, context(x)).state
    memory = torch.cat([state[entry], torch.zeros(shift)])
    state = state | {entry: memory[:N]}
    with pytest.raises(UsageError, match="shares memory with the old residual or momentum"):
        wrapped.compress(x, state, context(x, step=1), scratch=memory[shift:])


def test_scratch_for_both_entries_is_used() -> None:
    wrapped, x = MomentumCorrection(TopK(ratio=0.1)), make_values("normal", N, seed=1)
    state, scratch = wrapped.compress(x, {}, context(x)).state, torch.empty(2 * N)
    expected = wrapped.compress(x, state, context(x, step=1)).state
    scratch[:N] = x
    after = wrapped.compress(scratch[:N], state, context(x, step=1), scratch=scratch).state
    assert {key: value.data_ptr() for key, value in after.items()} == {
        "residual": scratch.data_ptr(),
        "momentum": scratch[N:].data_ptr(),
    }
    assert all(torch.equal(after[key], value) for key, value in expected.items())
    with pytest.raises(UsageError, match=r"expected contiguous float32 \(1000,\)"):
        wrapped.compress(x, state, context(x, step=1), scratch=torch.empty(2 * N + 1))


def test_without_compression_it_is_plain_momentum() -> None:
    wrapped, state, u = MomentumCorrection(NoCompression()), {}, torch.zeros(N)
    for step, x in enumerate(gradients(4)):
        done = wrapped.compress(x, state, context(x, step=step))
        state, u = done.state, x + torch.tensor(0.9) * u
        assert torch.equal(done.payload, u)
        assert not state["residual"].any()


@pytest.mark.parametrize("compressor", [MomentumCorrection(TopK()), SizePolicy(MomentumCorrection(TopK()))], ids=repr)
def test_reducers_refuse_it(compressor: Compressor) -> None:
    with pytest.raises(ConfigError, match="cannot be exchanged yet; take TopK"):
        with_defaults(compressor)


@pytest.mark.parametrize("momentum", [0, -0.1, 1.1, float("nan"), "0.9", None])
def test_a_momentum_out_of_range_is_refused(momentum: object) -> None:
    with pytest.raises(ConfigError, match=r"momentum is .*, expected a number in \(0, 1\]"):
        MomentumCorrection(TopK(), momentum=momentum)  # pyright: ignore[reportArgumentType] - wrong on purpose


def test_a_residual_inside_is_refused() -> None:
    with pytest.raises(ConfigError, match="which has a residual already; wrap the codec"):
        MomentumCorrection(ErrorFeedback(TopK()))
    with pytest.raises(ConfigError, match="expected a compressor"):
        MomentumCorrection("topk")  # pyright: ignore[reportArgumentType] - wrong on purpose
    with pytest.raises(ConfigError, match="whose scaled values make the residual grow"):
        MomentumCorrection(RandomK(error_feedback=False))
