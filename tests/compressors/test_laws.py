"""The laws that make compressed training work."""

from __future__ import annotations

import pytest
import torch
from gradwire import (
    BF16,
    FP16,
    Compressor,
    Context,
    ErrorFeedback,
    Int8,
    OneBit,
    RandomK,
    State,
    TensorMeta,
    TopK,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compressing import ALL, REMEMBERING, Case, cases, context, some_state

LEARNING_RATE = 0.1

#: what these leave out is exactly representable
SPARSIFIERS = [
    ErrorFeedback(TopK(ratio=0.1)),
    ErrorFeedback(TopK(ratio=0.1, values=FP16())),
    ErrorFeedback(TopK(ratio=0.1, values=BF16())),
    ErrorFeedback(RandomK(ratio=0.1)),
]


def totals(compressor: ErrorFeedback, case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p, D(C(p)) and the new residual, after one step that left a residual."""
    state = some_state(compressor, case)
    residual = state.get("residual", torch.zeros(case.ctx.meta.numel))
    result = compressor.compress(case.x, state, case.ctx)
    sent = compressor.decompress(result.payload, case.ctx, torch.empty(case.ctx.meta.numel))
    return case.flat + compressor.decay * residual, sent, result.state["residual"]


@pytest.mark.parametrize("compressor", SPARSIFIERS, ids=repr)
@given(case=cases(dtypes=(torch.float16, torch.float32), values=("normal", "constant", "zeros", "spike", "ties")))
def test_sent_plus_residual_is_the_input_bit_for_bit(compressor: ErrorFeedback, case: Case) -> None:
    total, sent, residual = totals(compressor, case)
    assert torch.equal(sent + residual, total)


@pytest.mark.parametrize("compressor", REMEMBERING, ids=repr)
@given(case=cases())
def test_sent_plus_residual_is_the_input(compressor: ErrorFeedback, case: Case) -> None:
    total, sent, residual = totals(compressor, case)
    largest = float(torch.cat([total.abs(), sent.abs()]).max())
    assert torch.allclose(sent + residual, total, rtol=1e-6, atol=1e-6 * largest)


@given(case=cases(dtypes=(torch.float32,)), decay=st.floats(0.01, 1.0))
def test_decay_weakens_the_old_residual(case: Case, decay: float) -> None:
    total, sent, residual = totals(ErrorFeedback(TopK(ratio=0.1), decay=decay), case)
    largest = float(total.abs().max())
    assert torch.allclose(sent + residual, total, rtol=1e-6, atol=1e-6 * largest)


@pytest.mark.parametrize("compressor", REMEMBERING, ids=repr)
@pytest.mark.parametrize("kind", ["normal", "sparse"])
def test_nothing_is_lost_over_many_steps(compressor: ErrorFeedback, kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    state: State = {}
    given_so_far, sent_so_far = torch.zeros(300), torch.zeros(300)
    for step in range(20):
        x = torch.randn(300, generator=generator)
        if kind == "sparse":
            x[torch.rand(300, generator=generator) < 0.9] = 0
        result = compressor.compress(x, state, context(x, step=step))
        state = result.state
        given_so_far += x
        compressor.decompress_add(result.payload, context(x, step=step), sent_so_far)
    assert torch.allclose(sent_so_far + state["residual"], given_so_far, atol=1e-4)


@pytest.mark.parametrize("compressor", REMEMBERING, ids=repr)
@pytest.mark.parametrize("world_size", [1, 3])
def test_parameters_minus_pending_residuals_follow_the_uncompressed_run(
    compressor: ErrorFeedback, world_size: int
) -> None:
    generator = torch.Generator().manual_seed(2)
    meta = TensorMeta(name="w", shape=(200,), dtype=torch.float32)
    states: list[State] = [{} for _ in range(world_size)]
    exact = torch.randn(200, generator=generator)
    compressed = exact.clone()
    for step in range(15):
        grads = torch.randn(world_size, 200, generator=generator)
        exact -= LEARNING_RATE * grads.mean(0)
        for rank in range(world_size):
            ctx = Context(meta=meta, step=step, rank=rank)
            result = compressor.compress(grads[rank], states[rank], ctx)
            states[rank] = result.state
            compressor.decompress_add(result.payload, ctx, compressed, -LEARNING_RATE / world_size)
    pending = torch.stack([state["residual"] for state in states]).mean(0)
    assert torch.allclose(compressed - LEARNING_RATE * pending, exact, atol=1e-4)


@pytest.mark.parametrize(
    "compressor", [ErrorFeedback(TopK(ratio=0.05)), ErrorFeedback(OneBit()), ErrorFeedback(Int8())]
)
def test_gradient_descent_on_a_bowl_reaches_the_bottom(compressor: ErrorFeedback) -> None:
    target = torch.linspace(-1, 1, 100) ** 3
    x, state = torch.zeros(100), {}
    for step in range(1500):
        result = compressor.compress(x - target, state, context(x, step=step))
        state = result.state
        compressor.decompress_add(result.payload, context(x, step=step), x, -0.02)
    assert float((x - target).norm()) < 0.02 * float(target.norm())


@pytest.mark.parametrize("compressor", [c for c in ALL if c.linear], ids=repr)
@given(case=cases(dtypes=(torch.float32,), values=("normal", "ties")), world_size=st.integers(1, 4))
def test_linear_codecs_commute_with_averaging(compressor: Compressor, case: Case, world_size: int) -> None:
    generator = torch.Generator().manual_seed(3)
    grads = torch.randn(world_size, case.ctx.meta.numel, generator=generator)

    def through(x: torch.Tensor) -> torch.Tensor:
        payload = compressor.compress(x, {}, case.ctx).payload
        return compressor.decompress(payload, case.ctx, torch.empty(case.ctx.meta.numel))

    mean_of_decoded = torch.stack([through(grad) for grad in grads]).mean(0)
    assert torch.allclose(through(grads.mean(0)), mean_of_decoded, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compressor", [c for c in ALL if c.unbiased], ids=repr)
def test_unbiased_codecs_are_right_on_average(compressor: Compressor) -> None:
    x = torch.linspace(-1, 2, 40)
    rounds = 2000
    decoded = []
    for step in range(rounds):
        payload = compressor.compress(x, {}, context(x, step=step)).payload
        decoded.append(compressor.decompress(payload, context(x, step=step)))
    samples = torch.stack(decoded).double()
    error = (samples.mean(0) - x).abs()
    assert bool((error <= 5 * samples.std(0) / rounds**0.5 + 1e-6).all())


@pytest.mark.parametrize("compressor", [c for c in ALL if not c.unbiased and not c.linear and c.wants_memory], ids=repr)
def test_a_biased_codec_leaves_a_residual(compressor: Compressor) -> None:
    x = torch.linspace(-1, 2, 200)
    state = ErrorFeedback(compressor).compress(x, {}, context(x)).state
    assert bool(state["residual"].any())


@settings(max_examples=10)
@given(seed=st.integers(0, 1000))
def test_rows_without_gradient_stay_within_the_largest_scale(seed: int) -> None:
    """With sign compression, |e - s sign(e)| <= max(|e|, s): an untouched element never exceeds the largest scale."""
    generator = torch.Generator().manual_seed(seed)
    compressor = ErrorFeedback(OneBit(block=None))
    state: State = {}
    largest_scale = 0.0
    for step in range(200):
        x = torch.zeros(64, 8)
        x[:16] = torch.randn(16, 8, generator=generator)
        result = compressor.compress(x, state, context(x, step=step))
        state = result.state
        largest_scale = max(largest_scale, float(result.payload[:4].view(torch.float32)))
        assert float(state["residual"].view(64, 8)[16:].abs().max()) <= largest_scale * 1.000001
