"""Compressors as strings, and back."""

from __future__ import annotations

import pytest
from gradwire import (
    BF16,
    FP8,
    FP16,
    Compressor,
    ConfigError,
    ErrorFeedback,
    Int4,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    TopK,
    TwoBit,
    format_spec,
    parse_spec,
)
from gradwire.compressors.spec import make_codec, option_names
from hypothesis import given
from hypothesis import strategies as st

SPECS: list[tuple[str, Compressor]] = [
    ("none", NoCompression()),
    ("fp16", FP16()),
    ("bf16", BF16()),
    ("topk", TopK()),
    ("onebit", OneBit()),
    ("topk:ratio=0.05", TopK(ratio=0.05)),
    ("topk:ratio=0.05,values=fp16", TopK(ratio=0.05, values=FP16())),
    ("topk:values=int8(block=64,stochastic=true)", TopK(values=Int8(block=64, stochastic=True))),
    ("topk:values=twobit,sampled=true", TopK(values=TwoBit(), sampled=True)),
    ("int4:block=32,stochastic=true", Int4(block=32, stochastic=True)),
    ("fp8:format=e5m2", FP8(format="e5m2")),
    ("twobit:block=64", TwoBit(block=64)),
    ("topk:values=int8(block=64),error_feedback=false", TopK(values=Int8(block=64), error_feedback=False)),
    ("randomk:ratio=0.1,error_feedback=false", RandomK(ratio=0.1, error_feedback=False)),
    ("onebit:block=none,scale=l2", OneBit(block=None, scale="l2")),
    ("int8:block=512,stochastic=true", Int8(block=512, stochastic=True)),
    ("int8:error_feedback=true", Int8(error_feedback=True)),
]


@pytest.mark.parametrize(("spec", "codec"), SPECS)
def test_parse_and_format(spec: str, codec: Compressor) -> None:
    assert parse_spec(spec) == codec
    assert format_spec(codec) == spec


@pytest.mark.parametrize("spec", [" topk : ratio = 0.05 , values = fp16 ", "TopK:ratio=5e-2,values=fp16,"])
def test_spaces_and_case_of_the_name_do_not_matter(spec: str) -> None:
    assert parse_spec(spec) == TopK(ratio=0.05, values=FP16())


casts = st.builds(FP16, error_feedback=st.booleans()) | st.builds(BF16)
int8s = st.builds(Int8, block=st.integers(1, 2**31), stochastic=st.booleans(), error_feedback=st.none() | st.booleans())
ratios = st.floats(0, 1, exclude_min=True)
codecs = st.one_of(
    casts,
    int8s,
    st.builds(NoCompression),
    st.builds(RandomK, ratio=ratios, error_feedback=st.booleans()),
    st.builds(
        TopK, ratio=ratios, values=st.none() | casts | int8s, sampled=st.booleans(), error_feedback=st.booleans()
    ),
    st.builds(Int4, block=st.integers(1, 2**20).map(lambda n: 2 * n), stochastic=st.booleans()),
    st.builds(FP8, format=st.sampled_from(["e4m3", "e5m2"]), error_feedback=st.booleans()),
    st.builds(TwoBit, block=st.integers(1, 2**20).map(lambda n: 4 * n)),
    st.builds(
        OneBit, block=st.none() | st.integers(1, 2**20).map(lambda n: 8 * n), scale=st.sampled_from(["l1", "l2"])
    ),
)


@given(codec=codecs)
def test_format_is_the_inverse_of_parse(codec: Compressor) -> None:
    assert parse_spec(format_spec(codec)) == codec


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            "tpok",
            r"unknown compressor: 'tpok' \(did you mean 'topk'\?\); allowed: bf16, fp16, fp8, int4",
        ),
        ("", "unknown compressor: ''; allowed: bf16"),
        ("topk:rato=0.1", r"unknown option of topk: 'rato' \(did you mean 'ratio'\?\); allowed: ratio, values"),
        ("topk:0.1", "unknown option of topk: '0.1'"),
        ("topk:ratio", "expected each once, as ratio=value"),
        ("topk:ratio=0.1,ratio=0.2", "expected each once, as ratio=value"),
        ("topk:ratio=2", r"ratio is 2, expected a number in \(0, 1\]"),
        ("topk:ratio=nan", "ratio is nan"),
        ("topk:ratio=a", "ratio is 'a'"),
        ("topk:values=fp61", r"values is 'fp61', expected None .* \(did you mean 'fp16'\?\)"),
        ("topk:values=topk", "values is TopK"),
        ("topk:values=int8(blok=3)", r"unknown option of int8: 'blok' \(did you mean 'block'\?\)"),
        ("onebit:scale=l3", "scale is 'l3', expected one of l1, l2"),
        ("int8:stochastic=ture", "stochastic is 'ture', expected True or False"),
        ("fp16:bits=3", "unknown option of fp16: 'bits'; allowed: error_feedback"),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(spec: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_spec(spec)


@given(text=st.text(alphabet="topkfint8:=,().01", max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        codec = parse_spec(text)
    except ConfigError:
        return
    assert parse_spec(format_spec(codec)) == codec


def test_wrappers_have_no_spec() -> None:
    with pytest.raises(ConfigError, match="has no spec; specs exist for"):
        format_spec(ErrorFeedback(TopK()))


# Names and options that come apart already.


@given(codec=codecs)
def test_a_codec_is_made_from_its_name_and_its_fields(codec: Compressor) -> None:
    name = format_spec(codec).partition(":")[0]
    assert make_codec(name, {key: getattr(codec, key) for key in option_names(name)}) == codec


def test_a_codec_as_an_option_may_be_a_string() -> None:
    assert make_codec("topk", {"values": "int8(block=64)"}) == TopK(values=Int8(block=64))
    assert make_codec("topk", {"values": "fp16"}) == TopK(values=FP16())


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("tpok", {}, r"unknown compressor: 'tpok' \(did you mean 'topk'\?\)"),
        ("topk", {"rato": 0.1}, r"unknown option of topk: 'rato' \(did you mean 'ratio'\?\); allowed: ratio, values"),
        ("topk", {"ratio": "0.1"}, "ratio is '0.1', expected a number"),
        ("onebit", {"error_feedback": "true"}, "error_feedback is 'true', expected True or False"),
        ("topk", {"values": "fp61"}, "values is 'fp61', expected None"),
        ("topk", {"values": "int8(blok=3)"}, "unknown option of int8: 'blok'"),
    ],
)
def test_types_are_taken_as_they_are(name: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_codec(name, options)
