"""What compression of gradients does not go together with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
from gradwire import ConfigError, UsageError
from gradwire.deepspeed_comp import register
from gradwire.deepspeed_comp.gradients.refusals import refuse_unsuitable


class Muon:
    __module__ = "deepspeed.runtime.zero.muon.original_muon"


class OneBitAdam:
    pass


def engine_with(**changes: Any) -> Any:
    """What is looked at of an engine that can be compressed, with some of it changed."""
    zero = {"offload_optimizer": None, **changes.pop("zero", {})}
    config = {"zero_config": SimpleNamespace(**zero), "torch_autocast_dtype": None, **changes.pop("config", {})}
    attributes: dict[str, Any] = {
        "optimizer": object(),
        "basic_optimizer": object(),
        "torch_autocast_enabled": lambda: True,
        **changes,
    }
    return SimpleNamespace(_config=SimpleNamespace(**config), **attributes)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DeepCompile": ({"config": {"compile_config": SimpleNamespace(deepcompile=True)}}, "set compile.deepcompile to"),
    "ZenFlow": ({"zero": {"zenflow": object()}}, r"leave out zero_optimization\.zenflow"),
    "SuperOffload": ({"zero": {"offload_optimizer": SimpleNamespace(super_offload=True)}}, "leave out super_offload"),
    "Muon": ({"basic_optimizer": Muon()}, 'use another optimizer, such as "type": "AdamW"'),
    "momenta": ({"basic_optimizer": OneBitAdam()}, 'use "type": "Adam", or leave the gradient_compression out'),
    "LoCo": (
        {"zero": {"zeropp_loco_param": {"err_beta": 0.8}}},
        r"leave out zeropp_loco_param and zero_quantized_gradients, and write .gradient_compression.: \{.type",
    ),
    "ZeRO++": ({"zero": {"zero_quantized_gradients": True}}, r"leave out zero_optimization\.zero_quantized_gradients"),
    "MiCS": ({"config": {"mics_shard_size": 2}}, r"leave out zero_optimization\.mics_shard_size"),
    "experts": ({"has_moe_layers": True}, "experts of a mixture are averaged over other ranks"),
    "fp16 autocast": ({"config": {"torch_autocast_dtype": torch.float16}}, "use dtype bfloat16, or the fp16 block"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_what_to_do(what: str) -> None:
    changes, text = REFUSED[what]
    with pytest.raises(ConfigError, match=f"^gradients cannot be compressed here: .*{text}"):
        refuse_unsuitable(engine_with(**changes))


def test_deepspeeds_own_refusal_of_loco_says_what_takes_its_place() -> None:
    register()
    with pytest.raises(DeepSpeedConfigError) as caught:
        DeepSpeedConfig({"train_batch_size": 1, "zero_optimization": {"stage": 3, "zeropp_loco_param": {}}})
    text = str(caught.value)
    assert text.startswith("LoCo-Zero++ has been removed")
    assert text.count('write "gradient_compression": {"type": "int8"} at the top of ds.json') == 1


def test_an_engine_as_it_should_be_is_not_refused() -> None:
    refuse_unsuitable(engine_with())
    refuse_unsuitable(engine_with(config={"mics_shard_size": -1, "torch_autocast_dtype": torch.bfloat16}))


@pytest.mark.parametrize("missing", ["optimizer", "basic_optimizer"])
def test_an_engine_without_an_optimizer_is_refused(missing: str) -> None:
    with pytest.raises(UsageError, match=r"give deepspeed.initialize\(\) one"):
        refuse_unsuitable(engine_with(**{missing: None}))
