"""Options out of range are refused where they are given; the text names the value and the range."""

from __future__ import annotations

from typing import Any

import pytest
from gradwire import (
    BF16,
    FP8,
    FP16,
    Compressor,
    ConfigError,
    Int4,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    TopK,
    TwoBit,
)

NO_FRACTION = [0, -0.1, 1.0000001, 2, float("nan"), float("inf"), "0.1", True, None, [0.1]]
NO_FLAG = [0, 1, "true", None]
NO_COUNT = [0, -8, 1.0, "8", True, float("nan"), 2**40]

CASES: list[tuple[type[Compressor], str, list[Any], str]] = [
    (TopK, "ratio", NO_FRACTION, r"a number in \(0, 1\]"),
    (RandomK, "ratio", NO_FRACTION, r"a number in \(0, 1\]"),
    (
        TopK,
        "values",
        ["topk", TopK(), NoCompression(), FP16, 0, OneBit()],
        r"None \(fp32\), FP16\(\), BF16\(\), FP8\(\)",
    ),
    (TopK, "error_feedback", NO_FLAG, "True or False"),
    (RandomK, "error_feedback", NO_FLAG, "True or False"),
    (OneBit, "error_feedback", NO_FLAG, "True or False"),
    (OneBit, "block", [*NO_COUNT, 12, 7], "a multiple of 8 from 8 to 2147483648"),
    (OneBit, "scale", ["l3", "L1", 1, None], "one of l1, l2"),
    (Int8, "block", [*NO_COUNT, None], "an integer from 1 to 2147483648"),
    (Int8, "stochastic", NO_FLAG, "True or False"),
    (Int8, "error_feedback", [0, 1, "true"], "True or False"),
    (BF16, "error_feedback", NO_FLAG, "True or False"),
    (TopK, "sampled", NO_FLAG, "True or False"),
    (Int4, "block", [*NO_COUNT, None, 7, 1], "a multiple of 2 from 2 to 2147483648"),
    (FP8, "format", ["e3m4", "E4M3", None], "one of e4m3, e5m2"),
    (FP8, "block", [*NO_COUNT, None], "an integer from 1 to 2147483648"),
    (FP8, "error_feedback", NO_FLAG, "True or False"),
    (TwoBit, "block", [*NO_COUNT, None, 6], "a multiple of 4 from 4 to 2147483648"),
    (TwoBit, "error_feedback", NO_FLAG, "True or False"),
]


@pytest.mark.parametrize(
    ("codec", "option", "value", "expected"),
    [(codec, option, value, expected) for codec, option, values, expected in CASES for value in values],
)
def test_a_bad_value_is_refused(codec: type[Compressor], option: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is .*, expected {expected}"):
        codec(**{option: value})


@pytest.mark.parametrize("codec", [TopK, RandomK, OneBit, Int8, Int4, FP8, TwoBit, FP16, BF16, NoCompression])
def test_an_unknown_option_is_refused(codec: type[Compressor]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'rato'"):
        codec(**{"rato": 0.1})
    with pytest.raises(TypeError, match="positional"):
        codec(0.1)  # pyright: ignore[reportCallIssue] - wrong on purpose


@pytest.mark.parametrize(
    ("spec", "codec"),
    [("int8", Int8()), ("int8:block=64", Int8(block=64)), ("INT8(block=64)", Int8(block=64)), ("fp16", FP16())],
)
def test_values_may_be_specs(spec: str, codec: Int8 | FP16) -> None:
    assert TopK(values=spec) == TopK(values=codec)
    assert TopK(values=spec).values == codec


def test_values_that_are_not_compressed_are_fp32() -> None:
    assert TopK(values="none") == TopK()


@pytest.mark.parametrize("spec", ["int8:blok=3", "int8(block=0)"])
def test_values_with_wrong_options_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown option of int8|block is 0"):
        TopK(values=spec)


@pytest.mark.parametrize("spec", ["int9", "", "topk", "onebit"])
def test_values_that_are_no_codec_for_them_are_refused_with_those_that_are(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"values is .*, expected None \(fp32\), FP16\(\), BF16\(\)") as caught:
        TopK(values=spec)
    assert "randomk" not in str(caught.value)


@pytest.mark.parametrize("ratio", [1, 1.0, 0.5, 1e-9])
def test_ratios_at_the_edge_are_accepted(ratio: float) -> None:
    assert TopK(ratio=ratio).ratio == RandomK(ratio=ratio).ratio == ratio
