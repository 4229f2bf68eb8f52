"""The maintainers' smoke run, without installing anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from gradwire.launch import versions

Call = tuple[list[str], dict[str, str]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The commands, none of which is run: a training reports one good case."""
    done: list[Call] = []

    def call(command: list[str], output: IO[str], **environment: str) -> None:
        done.append((command, environment))
        if "torch.distributed.run" in command:
            Path(command[-1]).write_text(json.dumps({"OneBitAdam": "ok"}))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(versions, "call", call)
    return done


def test_a_release_is_installed_once_and_put_first(calls: list[Call], tmp_path: Path) -> None:
    assert versions.main(["0.17.6"]) == 0
    (install, _), (train, environment) = calls
    folder = str(tmp_path / "deepspeed-0.17.6")
    assert install[-3:] == ["--target", folder, "deepspeed==0.17.6"]
    assert "gradwire.launch.versions_ranks" in train
    assert environment["PYTHONPATH"] == folder
    (tmp_path / "deepspeed-0.17.6" / "deepspeed").mkdir(parents=True)
    assert versions.main(["0.17.6"]) == 0
    assert len(calls) == 3


def test_all_releases_are_the_default(calls: list[Call]) -> None:
    assert versions.main([]) == 0
    assert [command[-1].removeprefix("deepspeed==") for command, _ in calls[::2]] == list(versions.SUPPORTED)


def test_a_failed_case_or_run_fails(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(command: list[str], output: IO[str], **environment: str) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(versions, "call", call)
    assert versions.main(["0.15.4"]) == 1
    assert "CalledProcessError: see" in capsys.readouterr().out


def test_an_unknown_release_is_refused(calls: list[Call], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        versions.main(["0.1"])
    assert "0.1 is no supported release; those are 0.15.4, 0.16.9" in capsys.readouterr().err
    assert calls == []


def test_what_a_release_cannot_do_by_itself_is_no_failure(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(release: str, console: object) -> dict[str, str]:
        return {"ZeRO 3": f"{versions.ALONE}no numactl"}

    monkeypatch.setattr(versions, "outcome", outcome)
    assert versions.main(["0.15.4"]) == 0
