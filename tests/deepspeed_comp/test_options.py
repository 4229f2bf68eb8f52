"""The settings in ds.json: every key and its default, and refusals that say what would work."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from gradwire import (
    ConfigError,
)
from gradwire.deepspeed_comp.options import (
    MomentumOptions,
    OneBitAdamOptions,
    OneBitLambOptions,
    ZeroOneAdamOptions,
)
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import json_values

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


parameters = st.dictionaries(st.sampled_from(sorted(OTHER)), json_values, max_size=3)


@given(model=st.sampled_from(list(TABLE)), values=parameters)
def test_any_parameters_are_read_or_refused(model: type[MomentumOptions], values: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert model.read(values).model_fields_set == set(values)
