"""`gradwire doctor`: which kernels run, and why not the native ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from gradwire.compressors import kernels
from gradwire.compressors.kernels import native
from gradwire.launch import cli
from gradwire.launch.doctor import findings


def doctor(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire.launch.cli", "doctor"]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_it_names_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == (0 if native.available() else 1)
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == ["gradwire", "python", "torch", "horovod", "deepspeed", "mpi4py", "kernels", "threads", "gpu"]
    assert lines["horovod"] == "0.28.1"


@pytest.mark.parametrize(("form", "said"), [("triton", "kernels: Triton"), ("reference", "pip install triton")])
def test_it_says_what_runs_on_a_gpu(monkeypatch: pytest.MonkeyPatch, form: str, said: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(kernels, "form_on", lambda device: form)
    assert dict(findings())["gpu"].startswith("a GPU, kernels: ")
    assert dict(findings())["gpu"].endswith(said)


@pytest.mark.parametrize("isa", ["plain", ""], ids=["the one asked for", "the best one"])
def test_it_names_the_instruction_set(isa: str) -> None:
    assert f"native, {isa or native.isa()}" in doctor(GRADWIRE_ISA=isa).stdout


def test_it_says_why_kernels_are_slow() -> None:
    done = doctor(GRADWIRE_NATIVE="0", GRADWIRE_REQUIRE_NATIVE="0")
    assert done.returncode == 1
    assert "plain torch, which is much slower: native ones are switched off by GRADWIRE_NATIVE=0" in done.stdout
    done = doctor(GRADWIRE_KERNELS="/nowhere/library.so", GRADWIRE_REQUIRE_NATIVE="0")
    assert "not loadable" in done.stdout


def test_doing_without_them_can_be_an_error() -> None:
    done = doctor(GRADWIRE_NATIVE="0", GRADWIRE_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert "GRADWIRE_REQUIRE_NATIVE=1, but the native kernels are switched off" in done.stderr
