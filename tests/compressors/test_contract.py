"""What holds for every compressor, wrapped or not: one test per rule."""

from __future__ import annotations

import random

import gradwire
import numpy as np
import pytest
import torch
from gradwire import Compressor, Context, ErrorFeedback, PayloadError, SizePolicy, TensorMeta, TopK, UsageError
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import DTYPES, Case, as_bytes, cases, context, every_compressor, snapshot, some_state


@every_compressor
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
def test_empty_tensor(compressor: Compressor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    ctx = context(torch.empty(shape, dtype=dtype))
    state = compressor.init(ctx.meta)
    result = compressor.compress(torch.empty(shape, dtype=dtype), state, ctx)
    decoded = compressor.decompress(result.payload, ctx)
    assert compressor.nbytes(ctx.meta) == result.payload.nbytes == 0
    assert result.finite
    assert result.state is state
    assert decoded.shape == shape
    assert decoded.dtype == dtype


@every_compressor
@given(case=cases())
def test_payload_has_the_predicted_size_and_dtype(compressor: Compressor, case: Case) -> None:
    payload = compressor.compress(case.x, {}, case.ctx).payload
    assert payload.nbytes == compressor.nbytes(case.ctx.meta)
    assert payload.dtype == compressor.wire_dtype(case.ctx.meta)
    assert payload.is_floating_point() == compressor.summable(case.ctx.meta)
    assert payload.dim() == 1


@every_compressor
@given(case=cases())
def test_decoded_tensor_has_shape_and_dtype_of_the_gradient(compressor: Compressor, case: Case) -> None:
    payload = compressor.compress(case.x, {}, case.ctx).payload
    decoded = compressor.decompress(payload, case.ctx)
    flat = compressor.decompress(payload, case.ctx, torch.empty(case.ctx.meta.numel))
    assert decoded.shape == case.x.shape
    assert decoded.dtype == case.x.dtype
    assert decoded.is_contiguous()
    assert bool(flat.isfinite().all())
    in_range = flat.abs() <= torch.finfo(case.x.dtype).max  # RandomK without a memory enlarges what it sends
    assert bool(decoded.reshape(-1)[in_range].isfinite().all())


@every_compressor
@given(case=cases())
def test_layout_does_not_matter(compressor: Compressor, case: Case) -> None:
    contiguous = case.x.contiguous().clone()
    first = compressor.compress(case.x, {}, case.ctx)
    second = compressor.compress(contiguous, {}, case.ctx)
    assert as_bytes(first.payload) == as_bytes(second.payload)
    assert snapshot(first.state) == snapshot(second.state)


@every_compressor
@given(case=cases())
def test_inputs_are_left_alone(compressor: Compressor, case: Case) -> None:
    state = some_state(compressor, case)
    before, gradient = snapshot(state), as_bytes(case.x)
    result = compressor.compress(case.x, state, case.ctx)
    after = as_bytes(result.payload)
    compressor.decompress(result.payload, case.ctx)
    compressor.decompress_add(result.payload, case.ctx, torch.ones(case.ctx.meta.numel))
    assert as_bytes(case.x) == gradient
    assert snapshot(state) == before
    assert as_bytes(result.payload) == after


@every_compressor
@given(case=cases())
def test_same_inputs_give_the_same_bits(compressor: Compressor, case: Case) -> None:
    state = some_state(compressor, case)
    first, second = (compressor.compress(case.x, state, case.ctx) for _ in range(2))
    assert as_bytes(first.payload) == as_bytes(second.payload)
    assert snapshot(first.state) == snapshot(second.state)


@every_compressor
@given(case=cases())
def test_given_buffers_change_nothing(compressor: Compressor, case: Case) -> None:
    state = some_state(compressor, case)
    plain = compressor.compress(case.x, state, case.ctx)
    size = compressor.nbytes(case.ctx.meta) // plain.payload.itemsize
    out = torch.full((8 + size,), 7, dtype=plain.payload.dtype)[8:]
    scratch = torch.full((case.ctx.meta.numel,), float("nan"))
    result = compressor.compress(case.x, state, case.ctx, out=out, scratch=scratch)
    assert result.payload is out
    assert as_bytes(out) == as_bytes(plain.payload)
    assert snapshot(result.state) == snapshot(plain.state)


@every_compressor
@given(case=cases(dtypes=(torch.float32,), layouts=("contiguous",)))
def test_a_donated_gradient_gives_the_same_bits(compressor: Compressor, case: Case) -> None:
    state = some_state(compressor, case)
    plain = compressor.compress(case.x, state, case.ctx)
    donated = case.x.clone()
    result = compressor.compress(donated, state, case.ctx, scratch=donated)
    assert as_bytes(result.payload) == as_bytes(plain.payload)
    assert snapshot(result.state) == snapshot(plain.state)


@every_compressor
@given(case=cases(dtypes=(torch.float32,)), weight=st.sampled_from([1.0, 0.25, -1.0]))
def test_decompress_add_adds_the_weighted_decoded_tensor(compressor: Compressor, case: Case, weight: float) -> None:
    payload = compressor.compress(case.x, {}, case.ctx).payload
    decoded = compressor.decompress(payload, case.ctx, torch.full((case.ctx.meta.numel,), float("nan")))
    assert torch.equal(decoded, compressor.decompress(payload, case.ctx).reshape(-1))
    out = torch.ones(case.ctx.meta.numel)
    compressor.decompress_add(payload, case.ctx, out, weight)
    assert torch.allclose(out, 1 + weight * decoded, rtol=1e-6, atol=1e-6)


@every_compressor
@given(case=cases(), weight=st.floats(-2, 2, width=32))
def test_decompress_is_decompress_add_onto_zeros(compressor: Compressor, case: Case, weight: float) -> None:
    payload, numel = compressor.compress(case.x, {}, case.ctx).payload, case.ctx.meta.numel
    out, added = torch.full((numel,), float("nan")), torch.zeros(numel)
    assert compressor.decompress(payload, case.ctx, out, weight) is out
    compressor.decompress_add(payload, case.ctx, added, weight)
    assert as_bytes(out) == as_bytes(added)


@every_compressor
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", [1, 8, 2049])
def test_zeros_decode_to_exact_zeros(compressor: Compressor, dtype: torch.dtype, numel: int) -> None:
    zeros = torch.zeros(numel, dtype=dtype)
    result = compressor.compress(zeros, {}, context(zeros))
    assert result.finite
    assert not bool(compressor.decompress(result.payload, context(zeros)).any())
    assert not any(bool(value.any()) for value in result.state.values())


@every_compressor
@pytest.mark.parametrize("magnitude", [1e-45, 1e-42, 1e-38, 1.2e-38, 1e-36])
def test_denormals_stay_finite_and_small(compressor: Compressor, magnitude: float) -> None:
    x = torch.linspace(-magnitude, magnitude, 100)
    state = compressor.init(context(x).meta)
    for step in range(5):
        result = compressor.compress(x, state, context(x, step=step))
        state = result.state
        assert result.finite
        assert float(compressor.decompress(result.payload, context(x, step=step)).abs().max()) < 1e-34
        assert all(bool(value.isfinite().all()) for value in state.values())


@every_compressor
@given(case=cases(), poison=st.sampled_from(["nan", "inf", "-inf"]), where=st.integers(0, 10**6))
def test_non_finite_input_is_refused_and_undone(compressor: Compressor, case: Case, poison: str, where: int) -> None:
    state = some_state(compressor, case)
    before = snapshot(state)
    bad = case.x.contiguous().clone()
    bad.view(-1)[where % bad.numel()] = float(poison)
    result = compressor.compress(bad, state, case.ctx)
    assert not result.finite
    assert result.state is state
    assert snapshot(state) == before
    assert bool(result.payload.isnan().all() if result.payload.is_floating_point() else (result.payload == 0).all())
    clean = compressor.compress(case.x, result.state, case.ctx)
    assert clean.finite
    assert all(bool(value.isfinite().all()) for value in clean.state.values())


@every_compressor
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_largest_finite_values(compressor: Compressor, dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, -1.0, 1.0, 0.5], dtype=dtype) * torch.finfo(torch.float32).max
    result = compressor.compress(x, {}, context(x))
    assert result.finite
    out = torch.zeros(4)
    compressor.decompress_add(result.payload, context(x), out, 0.25)
    assert bool(out.isfinite().all())
    assert all(bool(value.isfinite().all()) for value in result.state.values())


@every_compressor
def test_global_random_state_is_untouched(compressor: Compressor) -> None:
    x = torch.linspace(-1, 1, 3000)
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    payload = compressor.compress(x, {}, context(x)).payload
    compressor.decompress(payload, context(x))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert str(np.random.get_state()) == before[1]
    assert random.getstate() == before[2]


@every_compressor
@given(case=cases(), change=st.sampled_from([-1, 1, 8]))
def test_a_payload_of_another_size_is_refused(compressor: Compressor, case: Case, change: int) -> None:
    payload = compressor.compress(case.x, {}, case.ctx).payload
    length = max(0, payload.numel() + change)
    wrong = torch.zeros(length, dtype=payload.dtype)
    out = torch.ones(case.ctx.meta.numel)
    with pytest.raises(PayloadError, match="expects exactly"):
        compressor.decompress_add(wrong, case.ctx, out)
    assert bool((out == 1).all())


@every_compressor
def test_a_payload_of_another_dtype_is_refused(compressor: Compressor) -> None:
    x = torch.ones(64)
    with pytest.raises(PayloadError, match="expected 1-D"):
        compressor.decompress(torch.zeros(4, dtype=torch.int32), context(x))


@every_compressor
def test_tensors_that_do_not_fit_are_refused(compressor: Compressor) -> None:
    x = torch.ones(64)
    ctx = context(x)
    result = compressor.compress(x, {}, ctx)
    with pytest.raises(UsageError, match="got 63 elements, expected 64"):
        compressor.compress(x[1:], {}, ctx)
    with pytest.raises(UsageError, match="expected contiguous float32"):
        compressor.compress(x, {}, ctx, scratch=torch.empty(63))
    with pytest.raises(UsageError, match="the payload needs contiguous"):
        compressor.compress(x, {}, ctx, out=torch.empty(1, dtype=result.payload.dtype))
    with pytest.raises(UsageError, match="expected contiguous float32"):
        compressor.decompress_add(result.payload, ctx, torch.empty(64, dtype=torch.float64))


@every_compressor
@given(case=cases(), step=st.integers(0, 3))
def test_decoding_does_not_depend_on_the_rank(compressor: Compressor, case: Case, step: int) -> None:
    here = Context(meta=case.ctx.meta, step=step, rank=1, seed=5)
    there = Context(meta=case.ctx.meta, step=step, rank=2, seed=5)
    payload = compressor.compress(case.x, {}, here).payload
    assert as_bytes(compressor.decompress(payload, here)) == as_bytes(compressor.decompress(payload, there))


@every_compressor
@given(case=cases(dtypes=(torch.float32,), values=("normal", "heavy", "ties")), world=st.integers(1, 5))
def test_summed_payloads_decode_to_the_sum(compressor: Compressor, case: Case, world: int) -> None:
    meta = TensorMeta(name="w", shape=tuple(case.x.shape), dtype=torch.float32, summands=world)
    if not compressor.summable(meta):
        return
    contexts = [Context(meta=meta, step=2, rank=rank) for rank in range(world)]
    payloads = [compressor.compress(case.x * (ctx.rank + 1), {}, ctx).payload for ctx in contexts]
    exact = torch.stack([compressor.decompress(p, contexts[0]).double() for p in payloads]).sum(0)
    total = compressor.decompress(torch.stack(payloads).sum(0), contexts[0])
    step_size = torch.finfo(payloads[0].dtype).eps
    assert torch.allclose(
        total.double(), exact, rtol=4 * step_size, atol=4 * step_size * float(exact.abs().max()) + 1e-6
    )


@every_compressor
def test_a_misaligned_payload_is_decoded_all_the_same(compressor: Compressor) -> None:
    x = torch.linspace(-1, 1, 200)
    payload = compressor.compress(x, {}, context(x)).payload
    shifted = torch.cat([payload[:1], payload])[1:]
    assert torch.equal(compressor.decompress(shifted, context(x)), compressor.decompress(payload, context(x)))


@every_compressor
def test_the_repr_gives_the_options_back(compressor: Compressor) -> None:
    again = eval(repr(compressor), dict(vars(gradwire)))  # noqa: S307
    assert again == compressor
    assert hash(again) == hash(compressor)


@every_compressor
def test_what_torch_holds_in_other_ways_is_read_as_it_reads_it(compressor: Compressor) -> None:
    """Numbers that are negated when they are read, and zeros that have no memory."""
    for x, same in (
        (torch.complex(torch.zeros(100), torch.arange(1.0, 101.0)).conj().imag, -torch.arange(1.0, 101.0)),
        (torch._efficientzerotensor(100), torch.zeros(100)),  # pyright: ignore[reportPrivateImportUsage] - autograd's
    ):
        results = [compressor.compress(given, {}, context(same)) for given in (x, same)]
        assert as_bytes(results[0].payload) == as_bytes(results[1].payload)


def test_a_residual_beside_a_tensor_that_travels_dense_is_zero() -> None:
    memory, x = ErrorFeedback(SizePolicy(TopK(ratio=0.1))), torch.randn(100)
    assert not memory.compress(x, {}, context(x)).state["residual"].any()
