"""Gradients of other types than fp16, bf16, fp32 and fp64 are refused: in words, by all codecs, and early."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire import Compressor, Context, TensorMeta, TopK, UnsupportedError
from gradwire.backends import GradientReducer, LocalTransport
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import DTYPES, context, every_compressor

TORCH = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
OTHERS = [dtype for dtype in TORCH if (dtype.is_floating_point or dtype.is_complex) and dtype not in DTYPES]
WHOLE = [torch.bool, torch.uint8, torch.int32, torch.int64]
REFUSAL = (
    r"w: gradients of {} cannot be compressed, "
    r"only torch\.float16, torch\.bfloat16, torch\.float32, torch\.float64; cast to one of these first"
)


def refusal(dtype: torch.dtype) -> Any:
    return pytest.raises(UnsupportedError, match=REFUSAL.format(dtype))


def test_torch_has_dtypes_that_are_refused() -> None:
    assert {torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64} <= set(OTHERS)


@pytest.mark.parametrize("dtype", [*OTHERS, *WHOLE], ids=str)
def test_a_tensor_cannot_be_announced(dtype: torch.dtype) -> None:
    reducer = GradientReducer(TopK(), LocalTransport.group(1)[0])
    with refusal(dtype):
        reducer.register([TensorMeta(name="w", shape=(8,), dtype=dtype)])
    assert not reducer.names


@every_compressor
@pytest.mark.filterwarnings("ignore:ComplexHalf")
@given(dtype=st.sampled_from([*OTHERS, *WHOLE]), numel=st.sampled_from([0, 1, 64, 4096]))
def test_every_codec_refuses_them(compressor: Compressor, dtype: torch.dtype, numel: int) -> None:
    meta = TensorMeta(name="w", shape=(numel,), dtype=torch.float32)
    with refusal(dtype):
        compressor.compress(torch.empty(numel, dtype=dtype), {}, Context(meta=meta))


@every_compressor
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_codec_takes_the_others(compressor: Compressor, dtype: torch.dtype) -> None:
    x = torch.ones(64, dtype=dtype)
    assert compressor.decompress(compressor.compress(x, {}, context(x)).payload, context(x)).dtype == dtype
