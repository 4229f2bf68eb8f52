"""Codecs that send every element."""

from __future__ import annotations

import pytest
import torch
from gradwire import BF16, FP16, Compressor, Context, ErrorFeedback, NoCompression, TensorMeta, TopK
from support.compressing import DTYPES, as_bytes, context, make_values


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_compression_is_exact(dtype: torch.dtype) -> None:
    codec = NoCompression()
    x = (make_values("normal", 1000, seed=1).double() * torch.pi).to(dtype)
    x[0] = -0.0
    assert as_bytes(codec.decompress(codec.compress(x, {}, context(x)).payload, context(x))) == as_bytes(x)


def test_no_compression_keeps_the_range_of_double() -> None:
    x = torch.tensor([1e300, -1e-300], dtype=torch.float64)
    result = NoCompression().compress(x, {}, context(x))
    assert result.finite
    assert torch.equal(NoCompression().decompress(result.payload, context(x)), x)
    assert not TopK().compress(x, {}, context(x)).finite


@pytest.mark.parametrize(
    ("dtype", "summable"),
    [(torch.float16, False), (torch.bfloat16, False), (torch.float32, True), (torch.float64, True)],
)
def test_no_compression_sums_only_wide_dtypes_on_the_wire(dtype: torch.dtype, summable: bool) -> None:
    meta = TensorMeta(name="w", shape=(4,), dtype=dtype)
    assert NoCompression().summable(meta) == summable
    assert NoCompression().wire_dtype(meta) == (dtype if summable else torch.uint8)


@pytest.mark.parametrize("codec", [FP16(), BF16()])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_sums_on_the_wire_do_not_overflow(codec: FP16 | BF16, world_size: int) -> None:
    ctx = Context(meta=TensorMeta(name="w", shape=(64,), dtype=torch.float32, summands=world_size))
    payload = codec.compress(torch.full((64,), 40000.0), {}, ctx).payload
    total = sum((payload for _ in range(world_size - 1)), payload.clone())
    mean = codec.decompress(total, ctx) / world_size
    assert torch.allclose(mean, torch.full((64,), 40000.0), rtol=0.02)


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_saturated_sums_do_not_overflow(world_size: int) -> None:
    ctx = Context(meta=TensorMeta(name="w", shape=(2,), dtype=torch.float32, summands=world_size))
    payload = FP16().compress(torch.tensor([1e9, -1e9]), {}, ctx).payload
    total = sum((payload for _ in range(world_size - 1)), payload.clone())
    assert bool(total.isfinite().all())


def test_two_ranks_of_40000_give_40000() -> None:
    ctx = Context(meta=TensorMeta(name="w", shape=(1,), dtype=torch.float32, summands=2))
    payload = FP16().compress(torch.tensor([40000.0]), {}, ctx).payload
    assert float(FP16().decompress(payload + payload, ctx)) == 80000.0


def test_values_out_of_range_saturate_and_are_counted() -> None:
    codec = FP16()
    x = torch.tensor([1e6, -1e6, 65504.0, 65505.0, 1.0])
    first = codec.compress(x, {}, context(x))
    assert first.finite
    assert codec.decompress(first.payload, context(x)).tolist() == [65504.0, -65504.0, 65504.0, 65504.0, 1.0]
    assert first.state["saturated"].dtype == torch.int64
    second = codec.compress(x, first.state, context(x, step=1))
    assert int(first.state["saturated"]) == 3
    assert int(second.state["saturated"]) == 6


def test_bf16_keeps_the_range_of_fp32() -> None:
    x = torch.tensor([1e5, 1e-7, -3e38, torch.finfo(torch.float32).max])
    result = BF16().compress(x, {}, context(x))
    decoded = BF16().decompress(result.payload, context(x))
    assert torch.allclose(decoded, x, rtol=2**-8)
    assert int(result.state["saturated"]) == 1


@pytest.mark.parametrize("codec", [FP16(), BF16()])
def test_error_feedback_around_a_cast_catches_what_it_saturates(codec: FP16 | BF16) -> None:
    memory = ErrorFeedback(codec)
    x = torch.tensor([1e6, 1.0009765625 + 2**-20])
    result = memory.compress(x, {}, context(x))
    assert bool(result.state["residual"].isfinite().all())
    sent = memory.decompress(result.payload, context(x))
    assert torch.equal(sent + result.state["residual"], x)
    assert "saturated" in result.state


@pytest.mark.parametrize("codec", [FP16(), BF16()])
def test_casts_have_no_error_feedback_unless_asked(codec: FP16 | BF16) -> None:
    assert not codec.wants_memory
    assert type(codec)(error_feedback=True).wants_memory


@pytest.mark.parametrize("codec", [NoCompression(), FP16(), BF16()])
def test_nbytes(codec: Compressor) -> None:
    meta = TensorMeta(name="w", shape=(3, 5), dtype=torch.float64)
    assert codec.nbytes(meta) == (120 if isinstance(codec, NoCompression) else 30)
