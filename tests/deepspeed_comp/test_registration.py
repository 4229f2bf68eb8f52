"""What importing the package does to DeepSpeed: names are added, one constructor is wrapped, nothing else."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime import config as ds_config
from deepspeed.runtime import engine as ds_engine
from gradwire import ConfigError, UnsupportedError, with_defaults
from gradwire.compressors import TopK
from gradwire.deepspeed_comp import OneBitAdam, OneBitLamb, ZeroOneAdam, registration
from gradwire.deepspeed_comp._host import has_module, missing, require, unusable
from gradwire.deepspeed_comp.backends import CompressedBackend, MpiBackend, NcclBackend
from gradwire.deepspeed_comp.options import GradientCompression

HERE = Path(__file__).parent
ONEBIT = "deepspeed.runtime.fp16.onebit"
COMM = "deepspeed.runtime.comm"
OLD_PATHS: dict[str, tuple[str, type]] = {
    f"{COMM}.compressed": ("CompressedBackend", CompressedBackend),
    f"{COMM}.mpi": ("MpiBackend", MpiBackend),
    f"{COMM}.nccl": ("NcclBackend", NcclBackend),
    f"{ONEBIT}.adam": ("OnebitAdam", OneBitAdam),
    f"{ONEBIT}.lamb": ("OnebitLamb", OneBitLamb),
    f"{ONEBIT}.zoadam": ("ZeroOneAdam", ZeroOneAdam),
}
OPTIMIZERS: dict[str, type] = {"OneBitAdam": OneBitAdam, "OneBitLamb": OneBitLamb, "ZeroOneAdam": ZeroOneAdam}


@functools.cache
def report(script: str, *arguments: str) -> Any:
    """The last line that a script prints; a first engine on a machine has DeepSpeed compile for a minute."""
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# What is added, and that nothing else changes.


def test_no_file_of_deepspeed_changes() -> None:
    assert report("registered.py")["files"] == []


def test_the_engines_constructor_is_the_only_thing_that_is_replaced() -> None:
    found = report("registered.py")
    assert found["changed"] == ["deepspeed.runtime.engine.DeepSpeedEngine.__init__"]
    assert found["wrapped once"]


def test_old_modules_and_three_optimizers_are_added() -> None:
    modules = [*OLD_PATHS, ONEBIT, *(f"{path}.{name}" for path, (name, _) in OLD_PATHS.items())]
    package = [f"{ONEBIT}.{name}" for path, (name, _) in OLD_PATHS.items() if path.startswith(ONEBIT)]
    optimizers = [f"torch.optim.{case(name)}" for name in OPTIMIZERS for case in (str, str.lower)]
    assert report("registered.py")["added"] == sorted(modules + package + optimizers)


def test_deepspeeds_list_is_extended_in_place() -> None:
    found = report("registered.py")
    assert found["same list"]
    assert found["optimizers"] == [True, ["onebitadam", "onebitlamb", "zerooneadam"]]


def test_registering_again_changes_nothing() -> None:
    assert report("registered.py")["by registering again"] == []


# Optimizers by name.


class Host:
    """As much of an engine as it takes to make an optimizer."""

    def __init__(self, kind: str) -> None:
        self.settings = ds_config.DeepSpeedConfig({"train_batch_size": 1, "optimizer": {"type": kind}})

    def optimizer_name(self) -> str:
        return self.settings.optimizer_name

    def optimizer_params(self) -> dict[str, Any]:
        return self.settings.optimizer_params or {}


@pytest.mark.parametrize("case", [str, str.lower, str.upper, str.title, str.swapcase])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_deepspeed_finds_an_optimizer_in_any_letter_case(name: str, case: Any) -> None:
    host = Host(case(name))
    assert ds_engine.DeepSpeedEngine._is_supported_optimizer(host, host.optimizer_name())
    optimizer = ds_engine.DeepSpeedEngine._configure_basic_optimizer(host, [torch.nn.Parameter(torch.ones(3))])
    assert type(optimizer) is OPTIMIZERS[name]


SGD = {"type": "SGD", "params": {"lr": 0.1}}
CONFIGS = {
    "mixed case": {"optimizer": {"type": "OnebitADAM"}},
    "zero": {"optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": 1}},
    "unknown key": {"optimizer": {"type": "ZeroOneAdam", "params": {"freeze_step": 3}}},
    "block": {
        "optimizer": SGD,
        "gradient_compression": {"type": "topk", "ratio": 0.1},
    },
    "wrong block": {"optimizer": SGD, "gradient_compression": {"type": "topk", "rato": 0.1}},
}


def outcome(name: str) -> str:
    outcomes = report("initialized.py", json.dumps(list(CONFIGS.values())))
    return dict(zip(CONFIGS, outcomes, strict=True))[name]


def test_initialize_makes_it() -> None:
    assert outcome("mixed case") == "OneBitAdam"


def test_zero_is_refused_with_a_configuration_that_works() -> None:
    text = outcome("zero")
    assert text.startswith("ConfigError: OneBitAdam averages momenta over the ranks, and zero_optimization.stage is 1")
    assert 'use stage 0 with OneBitAdam, or "Adam" with a "gradient_compression" block such as' in text
    example = text[text.index("{") : text.index("}") + 1]
    assert GradientCompression.read(json.loads(example)).type == "onebit"


def test_an_unknown_parameter_is_refused() -> None:
    text = outcome("unknown key")
    assert text.startswith(
        "ConfigError: optimizer.params of ZeroOneAdam: unknown key 'freeze_step' (did you mean 'var_"
    )


def test_a_wrong_block_is_refused() -> None:
    assert outcome("wrong block").startswith(
        "ConfigError: gradient_compression: unknown key 'rato' (did you mean 'ratio'?)"
    )


def test_a_block_is_obeyed() -> None:
    assert outcome("block") == "SGD and Attachment"


# Old import paths.


@pytest.mark.parametrize("path", OLD_PATHS)
def test_an_old_path_gives_gradwires_class(path: str) -> None:
    name, expected = OLD_PATHS[path]
    module = importlib.import_module(path)
    assert getattr(module, name) is expected
    assert has_module(path)
    parent, _, child = path.rpartition(".")
    assert getattr(sys.modules[parent], child) is module


def test_every_form_of_import_works() -> None:
    code = "\n".join(
        f"import {path}\nassert {path}.{name}\nfrom {path} import {name}\n"
        f"from {path.rpartition('.')[0]} import {path.rpartition('.')[2]} as module\nassert module.{name} is {name}"
        for path, (name, _) in OLD_PATHS.items()
    )
    exec(code, {})  # noqa: S102  (our own text)
    importlib.import_module(ONEBIT).OnebitAdam  # noqa: B018


def test_what_a_release_has_itself_is_hidden_only_on_request() -> None:
    found = report("older.py")
    own, ours = dict.fromkeys(OLD_PATHS, "deepspeed"), dict.fromkeys(OLD_PATHS, "gradwire")
    names = [case(name) for name in OPTIMIZERS for case in (str, str.lower)]
    assert found["imported"] == own | {"package": ["deepspeed"], "torch.optim": []}
    assert found["replaced"] == ours | {"package": ["gradwire"], "torch.optim": names}
    assert found["list"] == ["muon", "onebitadam", "onebitlamb", "zerooneadam"]


# The block.


def obeying(block: object, monkeypatch: pytest.MonkeyPatch) -> tuple[list[object], list[tuple[object, Any]]]:
    """What a wrapped constructor was called with, and what was attached to what."""
    seen: list[object] = []
    attached: list[tuple[object, Any]] = []
    monkeypatch.setattr(registration, "_attach", lambda *pair: attached.append(pair))

    def constructor(self: Any, *args: object, **kwargs: object) -> None:
        seen.extend([self, args, kwargs])
        self._config = SimpleNamespace(_param_dict={} if block is ... else {"gradient_compression": block})

    host = SimpleNamespace()
    registration._obeying(constructor)(host, 1, two=2)
    assert seen == [host, (1,), {"two": 2}]
    return [host], attached


@pytest.mark.parametrize("block", [..., None])
def test_without_a_block_nothing_is_attached(block: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert obeying(block, monkeypatch)[1] == []


def test_the_block_is_attached_once_the_engine_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    (host,), ((engine, settings),) = obeying({"type": "topk", "ratio": 0.5, "warmup_steps": 3}, monkeypatch)
    assert engine is host
    assert settings.compressor == with_defaults(TopK(ratio=0.5))
    assert settings.warmup_steps == 3


def test_false_is_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="gradient_compression is False, expected a block"):
        obeying(False, monkeypatch)


# What is needed of DeepSpeed.


def test_the_installed_deepspeed_has_all_that_is_needed() -> None:
    assert unusable(ds_config, ds_engine) == []


@pytest.mark.parametrize("name", ["DEEPSPEED_OPTIMIZERS", "DeepSpeedConfig"])
def test_a_missing_name_is_found(name: str) -> None:
    without = ModuleType("config")
    vars(without).update({key: value for key, value in vars(ds_config).items() if key != name})
    assert unusable(without, ds_engine) == [f"deepspeed.runtime.config.{name}"]


def test_a_list_that_is_not_shared_is_found() -> None:
    copied = ModuleType("config")
    vars(copied).update(vars(ds_config), DEEPSPEED_OPTIMIZERS=list(ds_config.DEEPSPEED_OPTIMIZERS))
    (text,) = unusable(copied, ds_engine)
    assert text.startswith("one list DEEPSPEED_OPTIMIZERS")


def test_a_missing_method_or_attribute_is_found() -> None:
    class DeepSpeedEngine:
        def __init__(self) -> None:
            self.settings = None

    other = ModuleType("engine")
    vars(other).update(DEEPSPEED_OPTIMIZERS=ds_config.DEEPSPEED_OPTIMIZERS, DeepSpeedEngine=DeepSpeedEngine)
    place = "deepspeed.runtime.engine.DeepSpeedEngine"
    names = ("_is_supported_optimizer", "_configure_basic_optimizer", "optimizer_name", "optimizer_params", "_config")
    assert unusable(ds_config, other) == [f"{place}.{name}" for name in names]


def test_what_is_missing_is_named_with_the_version() -> None:
    lacking = missing(torch, "torch", ["Tensor", "Tonsor"])
    with pytest.raises(UnsupportedError, match=r"^DeepSpeed 0\.\S+ lacks what gradwire needs: torch\.Tonsor\. Supp"):
        require(lacking)


@pytest.mark.parametrize(("name", "there"), [("torch.nn", True), ("torch.nope", False), ("nope.nope.nope", False)])
def test_modules_are_looked_for_without_importing_them(name: str, there: bool) -> None:
    assert has_module(name) is there
