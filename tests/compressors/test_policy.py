"""Which tensors travel dense, and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire import (
    BF16,
    FP16,
    Compressor,
    ConfigError,
    ErrorFeedback,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    SizePolicy,
    TensorMeta,
    TopK,
    choose,
    with_defaults,
)
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import RAW, context


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> TensorMeta:
    return TensorMeta(name="w", shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("codec", "tensor", "reason"),
    [
        (TopK(), meta(64, 64), None),
        (TopK(), meta(0, 64), "empty"),
        (TopK(), meta(10, 10), "below min_numel=1024"),
        (TopK(), meta(4096), "1-D"),
        (TopK(ratio=0.9), meta(64, 64), "no saving: 18452 of 16384 bytes"),
        (RandomK(ratio=1.0), meta(64, 64), "no saving: 16384 of 16384 bytes"),
        (TopK(ratio=1.0, values=Int8()), meta(64, 64), "no saving: 4096 of 4096 entries"),
        (ErrorFeedback(TopK(ratio=1.0)), meta(64, 64, dtype=torch.float64), "no saving: 4096 of 4096 entries"),
        (Int8(block=1), meta(64, 64), "no saving: 20480 of 16384 bytes"),
        (FP16(), meta(64, 64, dtype=torch.bfloat16), "no saving: 8192 of 8192 bytes"),
    ],
)
def test_reasons(codec: Compressor, tensor: TensorMeta, reason: str | None) -> None:
    choice = choose(SizePolicy(codec), tensor)
    assert choice.reason == reason
    assert choice.codec == (codec if reason is None else NoCompression())


def test_a_scalar_is_dense() -> None:
    assert choose(SizePolicy(TopK(), min_numel=0), meta()).reason == "0-D"
    assert choose(SizePolicy(TopK(), min_numel=0, min_ndim=0), meta()).reason == "no saving: 8 of 4 bytes"


def test_without_a_policy_only_empty_tensors_are_dense() -> None:
    assert choose(TopK(), meta(1)) == (TopK(), None)
    assert choose(TopK(), meta(0)) == (NoCompression(), "empty")


@pytest.mark.parametrize("codec", RAW, ids=repr)
@given(shape=st.lists(st.integers(0, 20), max_size=3), min_numel=st.integers(0, 100), min_ndim=st.integers(0, 3))
def test_a_policy_never_sends_more_than_the_gradient(
    codec: Compressor, shape: list[int], min_numel: int, min_ndim: int
) -> None:
    policy = SizePolicy(codec, min_numel=min_numel, min_ndim=min_ndim)
    assert policy.nbytes(meta(*shape)) <= meta(*shape).raw_bytes


def test_dense_tensors_are_exact_and_keep_no_residual() -> None:
    policy = with_defaults(TopK())
    x = torch.linspace(-1, 1, 100)
    result = policy.compress(x, {}, context(x))
    assert result.state == {}
    assert torch.equal(policy.decompress(result.payload, context(x)), x)


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (TopK(), SizePolicy(ErrorFeedback(TopK()))),
        (OneBit(), SizePolicy(ErrorFeedback(OneBit()))),
        (RandomK(), SizePolicy(ErrorFeedback(RandomK()))),
        (Int8(), SizePolicy(ErrorFeedback(Int8()))),
        (Int8(stochastic=True), SizePolicy(Int8(stochastic=True))),
        (
            Int8(stochastic=True, error_feedback=True),
            SizePolicy(ErrorFeedback(Int8(stochastic=True, error_feedback=True))),
        ),
        (TopK(error_feedback=False), SizePolicy(TopK(error_feedback=False))),
        (RandomK(error_feedback=False), SizePolicy(RandomK(error_feedback=False))),
        (NoCompression(), NoCompression()),
        (FP16(), FP16()),
        (BF16(error_feedback=True), ErrorFeedback(BF16(error_feedback=True))),
        (ErrorFeedback(FP16()), ErrorFeedback(FP16())),
        (ErrorFeedback(TopK(), decay=0.9), SizePolicy(ErrorFeedback(TopK(), decay=0.9))),
        (SizePolicy(TopK(), min_numel=7), SizePolicy(ErrorFeedback(TopK()), min_numel=7)),
    ],
    ids=repr,
)
def test_defaults(codec: Compressor, expected: Compressor) -> None:
    assert with_defaults(codec) == expected
    assert with_defaults(expected) == expected


def test_min_numel_of_the_defaults() -> None:
    assert with_defaults(TopK(), min_numel=5) == SizePolicy(ErrorFeedback(TopK()), min_numel=5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"compressor": SizePolicy(TopK())}, "expected a compressor, wrapped once"),
        ({"compressor": TopK}, "expected a compressor, wrapped once"),
        ({"compressor": TopK(), "min_numel": -1}, "min_numel is -1, expected an integer from 0"),
        ({"compressor": TopK(), "min_numel": True}, "min_numel is True"),
        ({"compressor": TopK(), "min_ndim": 1.5}, "min_ndim is 1.5"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SizePolicy(**arguments)
