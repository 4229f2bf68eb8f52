"""The settings in ds.json: every key and its default, and refusals that say what would work."""

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
    MomentumOptions,
    OneBitAdamOptions,
    OneBitLambOptions,
    ZeroOneAdamOptions,
)
from hypothesis import given
from hypothesis import strategies as st

#: what all three take, with DeepSpeed 0.19.6's defaults; `legacy` is new
SHARED: dict[str, Any] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "bias_correction": True,
    "eps_inside_sqrt": False,
    "amsgrad": False,
    "max_grad_norm": 0.0,
    "cuda_aware": False,
    "comm_backend_name": "nccl",
    "legacy": False,
}
TABLE: dict[type[MomentumOptions], dict[str, Any]] = {
    OneBitAdamOptions: SHARED | {"freeze_step": 100000},
    OneBitLambOptions: SHARED
    | {
        "freeze_step": 100000,
        "max_coeff": 10.0,
        "min_coeff": 0.01,
        "coeff_beta": 0.9,
        "factor_max": 4.0,
        "factor_min": 0.5,
        "factor_threshold": 0.1,
    },
    ZeroOneAdamOptions: SHARED
    | {"var_freeze_step": 100000, "var_update_scaler": 16, "local_step_scaler": 32678, "local_step_clipper": 16},
}
KEYS = [(model, key) for model, keys in TABLE.items() for key in keys]
#: a value that every key takes besides its default
OTHER: dict[str, Any] = {
    "lr": 0.0,
    "betas": (0.5, 0.0),
    "eps": 0.0,
    "weight_decay": 0.01,
    "bias_correction": False,
    "eps_inside_sqrt": True,
    "amsgrad": False,
    "max_grad_norm": 0,
    "cuda_aware": True,
    "comm_backend_name": "gloo",
    "legacy": True,
    "freeze_step": 0,
    "max_coeff": 0.3,
    "min_coeff": 0.0,
    "coeff_beta": 0.0,
    "factor_max": 0.5,
    "factor_min": 0.0,
    "factor_threshold": 0,
    "var_freeze_step": 0,
    "var_update_scaler": 1,
    "local_step_scaler": 1,
    "local_step_clipper": 1,
}


def refusal(model: type[MomentumOptions], given: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        model.read(given)
    return str(caught.value)


# The optimizers.


@pytest.mark.parametrize("model", TABLE)
def test_every_key_has_deepspeeds_default(model: type[MomentumOptions]) -> None:
    assert model.read({}).model_dump() == TABLE[model]


@pytest.mark.parametrize(("model", "key"), KEYS)
def test_every_key_is_taken_as_json_writes_it(model: type[MomentumOptions], key: str) -> None:
    written = json.loads(json.dumps({key: OTHER[key]}))
    assert model.read(written).model_dump() == TABLE[model] | {key: OTHER[key]}


@pytest.mark.parametrize("wrong", ["1", None, {}, [[]]])
@pytest.mark.parametrize(("model", "key"), KEYS)
def test_a_wrong_type_is_refused_with_what_works(model: type[MomentumOptions], key: str, wrong: object) -> None:
    text = refusal(model, {key: wrong})
    assert text.startswith(f"{model.place}: {key} is {wrong!r}, which should be ")
    remedy = json.loads("{" + text.partition("; write ")[2] + "}")
    assert list(remedy) == [key]
    model.read(remedy)


@pytest.mark.parametrize(
    ("model", "given", "text"),
    [
        (OneBitAdamOptions, {"lr": "1e-2"}, "lr is '1e-2', which should be a valid number; write \"lr\": 0.01"),
        (OneBitAdamOptions, {"lr": -1}, 'lr is -1, which should be greater than or equal to 0; write "lr": 0.001'),
        (OneBitAdamOptions, {"lr": float("nan")}, 'lr is nan, which should be a finite number; write "lr": 0.001'),
        (OneBitAdamOptions, {"lr": True}, 'lr is True, which should be a valid number; write "lr": 0.001'),
        (OneBitAdamOptions, {"betas": [0.9]}, 'betas is [0.9], which is too short; write "betas": [0.9, 0.999]'),
        (OneBitAdamOptions, {"betas": [0.9, 1]}, 'which should be less than 1; write "betas": [0.9, 0.999]'),
        (OneBitAdamOptions, {"freeze_step": 1e3}, 'freeze_step is 1000.0, which should be a valid integer; write '
         '"freeze_step": 1000'),
        (OneBitAdamOptions, {"freeze_step": -1}, 'write "freeze_step": 100000'),
        (OneBitAdamOptions, {"comm_backend_name": "hccl"}, "comm_backend_name is 'hccl', which should be 'nccl', "
         "'gloo', 'mpi' or 'compressed'; write \"comm_backend_name\": \"nccl\""),
        (OneBitAdamOptions, {"comm_backend_name": "GLOO"}, 'write "comm_backend_name": "nccl"'),
        (OneBitAdamOptions, {"comm_backend_name": "Gloo"}, 'write "comm_backend_name": "gloo"'),
        (OneBitLambOptions, {"min_coeff": 20}, "min_coeff is 20.0, above max_coeff, 10.0; write \"min_coeff\": 0.01, "
         '"max_coeff": 10.0'),
        (OneBitLambOptions, {"factor_max": 0.1}, "factor_min is 0.5, above factor_max, 0.1"),
        (ZeroOneAdamOptions, {"var_update_scaler": 0}, 'greater than or equal to 1; write "var_update_scaler": 16'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_what_works(
    model: type[MomentumOptions], given: dict[str, Any], text: str
) -> None:
    assert text in refusal(model, given)


@pytest.mark.parametrize(
    ("model", "key", "hint"),
    [
        (OneBitAdamOptions, "frezze_step", "freeze_step"),
        (OneBitLambOptions, "factor_treshold", "factor_threshold"),
        (ZeroOneAdamOptions, "freeze_step", "var_freeze_step"),
        (OneBitAdamOptions, "LR", None),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(model: type[MomentumOptions], key: str, hint: str | None) -> None:
    nearest = f" (did you mean {hint!r}?)" if hint else ""
    expected = f"{model.place}: unknown key {key!r}{nearest}; allowed: {', '.join(sorted(TABLE[model]))}"
    assert refusal(model, {key: 1}) == expected


@pytest.mark.parametrize("model", TABLE)
def test_amsgrad_is_refused(model: type[MomentumOptions]) -> None:
    text = "amsgrad is true, and a frozen variance has no maximum to keep; leave the key out"
    assert refusal(model, {"amsgrad": True}) == f"{model.place}: {text}"


@pytest.mark.parametrize("model", TABLE)
def test_max_grad_norm_is_refused_with_the_key_that_clips(model: type[MomentumOptions]) -> None:
    text = refusal(model, {"max_grad_norm": 1.5})
    assert text.endswith('leave the key out and write "gradient_clipping": 1.5 at the top of ds.json')


def test_every_fault_is_named() -> None:
    text = refusal(OneBitAdamOptions, {"lr": "a", "freez": 1, "amsgrad": True})
    assert all(part in text for part in ("lr is 'a'", "unknown key 'freez'", "amsgrad is true"))


def test_what_a_parameter_group_holds() -> None:
    group = OneBitAdamOptions.read({"lr": 0.5}).group_defaults()
    assert group == {key: SHARED[key] for key in ("betas", "eps", "weight_decay", "bias_correction")} | {
        "lr": 0.5,
        "max_grad_norm": 0.0,
    }


# The block for gradients.


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
        ({"type": "tokp"}, "unknown compressor: 'tokp' (did you mean 'topk'?); allowed: bf16, fp16, int8, none"),
        ({"type": "topk", "rato": 1}, "unknown key 'rato' (did you mean 'ratio'?); allowed: error_feedback, exchange, "
         "min_numel, ratio, seed, timeout, type, values, warmup_steps"),
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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2000) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


parameters = st.dictionaries(st.sampled_from(sorted(OTHER)), json_values, max_size=3)
CODEC_KEYS = ("ratio", "values", "error_feedback", "block", "scale", "stochastic")
block_keys = st.dictionaries(
    st.sampled_from([*CODEC_KEYS, "min_numel", "warmup_steps", "exchange", "timeout", "seed"]), json_values, max_size=3
)


@given(model=st.sampled_from(list(TABLE)), values=parameters)
def test_any_parameters_are_read_or_refused(model: type[MomentumOptions], values: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert model.read(values).model_fields_set == set(values)


@given(name=st.sampled_from(["topk", "onebit", "int8", "none"]), values=block_keys)
def test_any_block_is_read_or_refused(name: str, values: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert block(type=name, **values).type == name
