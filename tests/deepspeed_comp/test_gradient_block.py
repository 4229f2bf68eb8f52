"""The block `gradient_compression` of ds.json: what is taken, and what is refused with what words."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from gradwire import (
    BF16,
    FP16,
    ConfigError,
    ErrorFeedback,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    SizePolicy,
    TopK,
    parse_spec,
    with_defaults,
)
from gradwire.backends import GradientReducer, LocalTransport
from gradwire.deepspeed_comp.options import (
    GradientCompression,
)
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import json_values

CODEC_KEYS = ("ratio", "values", "error_feedback", "block", "scale", "stochastic")
block_keys = st.dictionaries(
    st.sampled_from([*CODEC_KEYS, "min_numel", "warmup_steps", "exchange", "timeout", "seed"]), json_values, max_size=3
)


def block(**keys: Any) -> GradientCompression:
    return GradientCompression.read(keys)


def test_the_block_of_the_readme() -> None:
    settings = block(type="topk", ratio=0.01, error_feedback=True, min_numel=1024, warmup_steps=0)
    assert settings.compressor == SizePolicy(ErrorFeedback(TopK(ratio=0.01)), min_numel=1024)
    assert settings.warmup_steps == 0
    assert settings.reducer_options == {"exchange": "auto", "timeout": 1800.0, "seed": 0}


@pytest.mark.parametrize("spec", ["topk", "randomk", "onebit", "int8", "fp16", "bf16", "none"])
def test_every_compressor_has_its_name_and_its_defaults(spec: str) -> None:
    expected = with_defaults(parse_spec(spec))
    assert block(type=spec).compressor == block(type=spec.upper()).compressor == expected


@pytest.mark.parametrize(
    ("keys", "codec"),
    [
        ({"type": "topk", "ratio": 1, "values": "fp16"}, TopK(ratio=1, values=FP16())),
        ({"type": "topk", "values": "int8(block=64)"}, TopK(values=Int8(block=64))),
        ({"type": "topk", "values": None}, TopK()),
        ({"type": "randomk", "ratio": 0.5}, RandomK(ratio=0.5)),
        ({"type": "onebit", "block": None, "scale": "l2"}, OneBit(block=None, scale="l2")),
        ({"type": "int8", "stochastic": True}, Int8(stochastic=True)),
        ({"type": "bf16", "error_feedback": True}, BF16(error_feedback=True)),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_other_keys_are_the_codecs(keys: dict[str, Any], codec: Any) -> None:
    assert block(**json.loads(json.dumps(keys))).compressor == with_defaults(codec)


def test_error_feedback_can_be_off() -> None:
    assert block(type="topk", error_feedback=False).compressor == SizePolicy(TopK(error_feedback=False))


@pytest.mark.parametrize("codec", [FP16(), NoCompression(), TopK()], ids=["fp16", "none", "topk"])
def test_min_numel_is_obeyed_by_all(codec: Any) -> None:
    name = {"FP16": "fp16", "NoCompression": "none", "TopK": "topk"}[type(codec).__name__]
    expected = SizePolicy(ErrorFeedback(codec) if codec.wants_memory else codec, min_numel=7)
    assert block(type=name, min_numel=7).compressor == expected


def test_a_reducer_takes_the_options() -> None:
    settings = block(type="topk", exchange="gather", timeout=5, seed=3)
    reducer = GradientReducer(settings.compressor, LocalTransport.group(1)[0], **settings.reducer_options)
    assert reducer.compressor == settings.compressor


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, 'type is missing; write "type": "topk"'),
        ({"type": 5}, "type is 5, which should be a valid string; write \"type\": \"topk\""),
        ({"type": "tokp"}, "unknown compressor: 'tokp' (did you mean 'topk'?); allowed: bf16, fp16, fp8, int4"),
        ({"type": "topk", "rato": 1}, "unknown key 'rato' (did you mean 'ratio'?); allowed: error_feedback, exchange, "
         "min_numel, ratio, sampled, seed, timeout, type, values, warmup_steps"),
        ({"type": "topk", "warmup_step": 1}, "unknown key 'warmup_step' (did you mean 'warmup_steps'?)"),
        ({"type": "none", "ratio": 0.1}, "unknown key 'ratio'; allowed: exchange"),
        ({"type": "topk", "ratio": "0.1"}, "ratio is '0.1', expected a number in (0, 1]"),
        ({"type": "topk", "ratio": 0}, "ratio is 0, expected a number in (0, 1]"),
        ({"type": "topk", "values": "topk"}, "values is TopK"),
        ({"type": "topk", "error_feedback": 1}, "error_feedback is 1, expected True or False"),
        ({"type": "topk", "min_numel": -3}, "min_numel is -3, which should be greater than or equal to 0; leave the"),
        ({"type": "topk", "warmup_steps": 1.5}, 'warmup_steps is 1.5, which should be a valid integer; write '
         '"warmup_steps": 0'),
        ({"type": "topk", "exchange": "two-phase"}, 'write "exchange": "two_phase"'),
        ({"type": "topk", "timeout": 0}, 'timeout is 0, which should be greater than 0; write "timeout": 1800.0'),
        ({"type": "topk", "seed": "1"}, "seed is '1', which should be a valid integer; write \"seed\": 1"),
    ],
)  # fmt: skip
def test_a_wrong_block_is_refused_with_what_works(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GradientCompression.read(keys)
    assert str(caught.value).startswith("gradient_compression: ")
    assert text in str(caught.value)


@pytest.mark.parametrize("wrong", [True, "topk", 3, ["topk"], TopK()])
def test_something_else_than_a_block_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r'gradient_compression is .*, expected a block such as \{"type": "topk"'):
        GradientCompression.read(wrong)


@given(name=st.sampled_from(["topk", "onebit", "int8", "none"]), values=block_keys)
def test_any_block_is_read_or_refused(name: str, values: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert block(type=name, **values).type == name
