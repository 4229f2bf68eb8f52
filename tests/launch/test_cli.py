"""The `gradwire` command line: what it accepts, and what it says to the rest."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import gradwire
import pytest
from gradwire.launch import cli, demo


def parse(*arguments: str) -> argparse.Namespace:
    return cli.command_line().parse_args(arguments)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        parse(*arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"gradwire {gradwire.__version__}\n" * 2


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(name, "--help")
    assert stopped.value.code == 0
    assert f"gradwire {name}" in capsys.readouterr().out


def test_an_unknown_command_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    text = refusal(capsys, "fly")
    assert "'fly'" in text
    assert all(name in text for name in [*cli.COMMANDS, "version"])


@pytest.mark.parametrize("option", ["--ranks=2", "--step=3", "--compress=none"])
def test_an_unknown_or_shortened_option_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert option in refusal(capsys, "demo", option)


@pytest.mark.parametrize(
    ("option", "value", "named", "allowed"),
    [
        ("--np", "0", "'0'", "from 1 to 64"),
        ("--np", "65", "'65'", "from 1 to 64"),
        ("--np", "two", "'two'", "from 1 to 64"),
        ("--steps", "-1", "'-1'", "from 1 to 100000"),
        ("--steps", "1.5", "'1.5'", "from 1 to 100000"),
        ("--seed", "x", "'x'", "from 0 to 2147483647"),
        ("--compression", "gzip", "gzip", "onebit, randomk, topk"),
        ("--compression", "topk:ratio=2", "2", "(0, 1]"),
        ("--compression", "topk:size=2", "size", "ratio"),
    ],
)
def test_a_bad_value_is_refused_with_the_allowed_ones(
    option: str, value: str, named: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, "demo", f"{option}={value}").splitlines()[-1]
    assert option in message
    assert named in message
    assert allowed in message


@pytest.fixture
def _everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "import_problem", lambda module: None)


def rows(*arguments: str) -> list[tuple[str, str, int, int, int]]:
    options = parse("demo", *arguments)
    jobs = [*demo.horovod_jobs(options), *demo.deepspeed_jobs(options)]
    return [(job.name, job.launcher, job.ranks, job.steps, job.seed) for job in jobs]


@pytest.mark.usefixtures("_everything_is_installed")
def test_the_demo_runs_three_compressions_and_two_optimizers_by_default() -> None:
    assert rows() == [
        ("none", "gloo", 2, 150, 0),
        ("topk:ratio=0.01", "gloo", 2, 150, 0),
        ("onebit", "gloo", 2, 150, 0),
        ("DeepSpeed Adam", "deepspeed", 2, 150, 0),
        ("DeepSpeed OneBitAdam", "deepspeed", 2, 150, 0),
    ]


@pytest.mark.usefixtures("_everything_is_installed")
def test_the_demo_runs_what_it_is_given(tmp_path: Path) -> None:
    common = ("--np=3", "--steps=7", "--seed=5", "--mpi")
    configs = [tmp_path / "one.json", tmp_path / "two.json"]
    for config in configs:
        config.write_text('{"optimizer": {"type": "OneBitLamb"}}')
    compressions = [("fp16", "mpi", 3, 7, 5), ("int8", "mpi", 3, 7, 5)]
    assert rows(*common, "--compression=fp16", "--compression=int8") == compressions
    assert rows(*common, f"--config={configs[0]}") == [("DeepSpeed OneBitLamb", "deepspeed", 3, 7, 5)]
    assert rows(*common, "--compression=fp16", *(f"--config={config}" for config in configs)) == [
        compressions[0],
        ("DeepSpeed OneBitLamb, one", "deepspeed", 3, 7, 5),
        ("DeepSpeed OneBitLamb, two", "deepspeed", 3, 7, 5),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "No such file"), ("{", "cannot be read as JSON"), ("[]", "names no optimizer"), ("{}", '"OneBitAdam"')],
)
def test_a_config_that_names_no_optimizer_is_refused(
    text: str | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "ds.json").write_text(text)
    message = refusal(capsys, "demo", f"--config={tmp_path / 'ds.json'}")
    assert "ds.json" in message
    assert reason in message


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    message = refusal(capsys, "demo", f"--out={tmp_path / 'file' / 'out'}")
    assert "cannot be made (Not a directory); allowed is a folder that can be written" in message


@pytest.mark.parametrize("steps", ["0", "-3", "many"])
def test_examples_refuse_a_number_of_steps_that_trains_nothing(steps: str) -> None:
    script = Path(gradwire.__file__).parent / "examples" / "gpt.py"
    parser = runpy.run_path(str(script))["make_parser"](None)
    parser.exit_on_error = False
    with pytest.raises(argparse.ArgumentError, match="allowed are whole numbers from 1 on"):
        parser.parse_args([f"--steps={steps}"])
