"""`gradwire bench`: what it accepts, what it shows, that it verifies what it measured, and one real run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradwire
import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import TopK
from gradwire.launch import bench, bench_ranks, cli, shapes
from gradwire.launch.bench_ranks import Row, verify
from gradwire.launch.bench_table import COLUMNS, cells, table
from gradwire.launch.runs import RunError

STOCK = {"row": "stock", "step_s": 0.010, "sent_bytes": 37888}
OURS = {"row": "ours", "step_s": 0.0125, "sent_bytes": 1500, "codec_s": 0.004, "wait_s": 0.0011}


def parse(*arguments: str) -> argparse.Namespace:
    return cli.command_line().parse_args(["bench", *arguments])


def reporting(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let this Python program stand for the ranks; `sys.argv[-1]` is their report."""
    monkeypatch.setattr(bench, "launch_command", lambda launcher, ranks: [sys.executable, "-c", program])


@pytest.mark.parametrize(
    ("arguments", "named", "allowed"),
    [
        (["adaptor"], "'adaptor'", "resnet50"),
        ([], "WHAT", "required"),
        (["adapter", "--np=1"], "'1'", "from 2 to 64"),
        (["adapter", "--np=many"], "'many'", "from 2 to 64"),
        (["adapter", "--steps=0"], "'0'", "from 1 to 100000"),
        (["adapter", "--steps=-3"], "'-3'", "from 1 to 100000"),
        (["adapter", "--json=/no/such/folder/rows.json"], "rows.json", "a folder that exists"),
        (["adapter", "--step=2"], "--step", "unrecognized"),
    ],
)
def test_a_bad_value_is_refused_with_the_allowed_ones(
    arguments: list[str], named: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(*arguments)
    message = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 2
    assert named in message
    assert allowed in message


def test_a_file_that_cannot_be_made_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Also for root, whom rights do not stop."""
    with pytest.raises(SystemExit):
        parse("adapter", "--json=/proc/rows.json")
    assert "'/proc/rows.json' cannot be written" in capsys.readouterr().err


def test_a_link_to_nothing_is_left_as_it_is(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    assert parse("adapter", f"--json={link}").json == link
    assert link.is_symlink()
    assert not link.exists()


def test_what_waits_for_a_reader_is_not_opened_on_trial(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    assert parse("adapter", f"--json={pipe}").json == pipe


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("[]")
    for path in (kept, tmp_path / "new.json"):
        parse("adapter", f"--json={path}")
    assert kept.read_text() == "[]"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


def test_a_folder_is_no_file_for_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("adapter", f"--json={tmp_path}")
    assert "a file in a folder that exists" in capsys.readouterr().err


def test_ratios_are_to_the_first_row() -> None:
    assert cells(STOCK, STOCK) == ["stock", "10.0 ms", "1.00", "0.038 MB", "-", "-"]
    assert cells(OURS, STOCK) == ["ours", "12.5 ms", "1.25", "0.002 MB", "4.0 ms", "1.1 ms"]
    shown = table("adapter", [STOCK, OURS])
    assert (shown.row_count, len(shown.columns)) == (2, len(COLUMNS))


def test_rows_are_shown_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reporting(monkeypatch, f"import sys, json; open(sys.argv[-1], 'w').write(json.dumps({[STOCK, OURS]}))")
    assert cli.main(["bench", "adapter", f"--json={tmp_path / 'rows.json'}"]) == 0
    assert json.loads((tmp_path / "rows.json").read_text()) == [STOCK, OURS]
    assert "1.25" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "text"),
    [("raise SystemExit('ours: the parameters are 9 % away')", r"(?s)status 1.*9 % away"), ("pass", "status 0")],
)
def test_ranks_that_fail_or_report_nothing_are_an_error(
    monkeypatch: pytest.MonkeyPatch, program: str, text: str
) -> None:
    reporting(monkeypatch, program)
    with pytest.raises(RunError, match=text):
        bench.run(parse("adapter"))


@pytest.mark.parametrize(("package", "extra"), [("rich", "demo"), ("horovod", "horovod")])
def test_without_an_optional_package_only_the_bench_fails(package: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from gradwire.launch.cli import main\n"
        "sys.exit(main(['version']) or main(['bench', 'adapter']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, f"gradwire {gradwire.__version__}\n")
    assert f"gradwire bench needs {package}" in done.stderr
    assert f'pip install "gradwire[{extra}]"' in done.stderr


def test_shapes_of_the_models() -> None:
    model = shapes.resnet50()
    assert (len(model), sum(torch.Size(shape).numel() for shape in model)) == (161, 25_557_032)
    assert shapes.tiny() == [(8, 8)] * 148


# The verification. Every rank has the same gradients here, so one process stands for all of them.


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod's calls, as one rank alone would answer them, and no Horovod behind them."""
    answers: dict[str, Callable[..., Any]] = {
        "init": lambda: None,
        "rank": lambda: 0,
        "size": lambda: 1,
        "barrier": lambda: None,
        "allgather": lambda tensor, name: tensor,
        "allreduce": lambda tensor, name, op=None: tensor,
        "DistributedOptimizer": lambda optimizer, named_parameters, compression: optimizer,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(hvd, name, answer)


def trained(steps: int = 4, compression: object = None) -> Row:
    """A row whose parameters are where that many updates by the gradients, with a learning rate of 1, have led."""
    gradients = [torch.randn(3, 5, generator=torch.Generator().manual_seed(1)), torch.ones(7)]
    parameters = [torch.nn.Parameter(-steps * gradient) for gradient in gradients]
    return Row("ours", parameters, gradients, torch.optim.SGD(parameters, lr=1.0), compression, [0.01] * steps)


@pytest.mark.usefixtures("alone")
def test_right_parameters_pass() -> None:
    verify(trained())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "falsify",
    [
        lambda parameter: parameter.mul_(0.75),  # a step is missing
        lambda parameter: parameter.neg_(),
        lambda parameter: parameter.view(-1)[0].add_(1.0),
        lambda parameter: parameter.view(-1)[0].fill_(float("nan")),
        lambda parameter: parameter.zero_(),
    ],
    ids=["a step too few", "sign", "one value", "nan", "never updated"],
)
def test_wrong_parameters_do_not_pass(falsify: Callable[[torch.Tensor], object]) -> None:
    row = trained()
    falsify(row.parameters[0].data)
    with pytest.raises(SystemExit, match=r"ours: the parameters are .* away from the sum of the mean gradients"):
        verify(row)


@pytest.mark.usefixtures("alone")
def test_ranks_with_different_parameters_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hvd, "allgather", lambda tensor, name: torch.cat([tensor, tensor + 1]))
    with pytest.raises(SystemExit, match="ours: ranks hold different parameters"):
        verify(trained())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("counted", [True, False])
def test_what_is_still_owed_counts(monkeypatch: pytest.MonkeyPatch, counted: bool) -> None:
    compression = TopK()
    row = trained(compression=compression)
    owed = {f"p{index}": 0.5 * gradient for index, gradient in enumerate(row.gradients)}
    for parameter, residual in zip(row.parameters, owed.values(), strict=True):
        parameter.data += residual
    pending = owed.__getitem__ if counted else lambda name: torch.zeros_like(owed[name])
    monkeypatch.setattr(compression, "_sessions", lambda: [SimpleNamespace(pending=pending)])
    if counted:
        verify(row)
    else:
        with pytest.raises(SystemExit, match=r"12\.5% away"):
            verify(row)


@pytest.mark.usefixtures("alone")
def test_every_row_is_verified_before_anything_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "rows.json"
    rates = {"first": 1.0, "second": 1.0}

    def optimizer(inner: torch.optim.Optimizer, *, compression: str, **others: object) -> torch.optim.Optimizer:
        inner.param_groups[0]["lr"] = rates[compression]
        return inner

    monkeypatch.setattr(hvd, "DistributedOptimizer", optimizer)
    monkeypatch.setitem(bench_ranks.BENCHES, "adapter", lambda: ([(2, 3)], {name: name for name in rates}))
    bench_ranks.main("adapter", 2, report)
    assert [row["row"] for row in json.loads(report.read_text())] == ["first", "second"]
    report.unlink()
    rates["second"] = 0.5
    with pytest.raises(SystemExit, match=r"second: the parameters are 50\.0% away"):
        bench_ranks.main("adapter", 2, report)
    assert not report.exists()


def test_two_real_steps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gradwire.launch.cli", "bench", "adapter", "--steps=2"]
    command += [f"--json={tmp_path / 'rows.json'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    stock, ours = json.loads((tmp_path / "rows.json").read_text())
    assert stock.keys() == {"row", "step_s", "sent_bytes"}
    assert ours.keys() == stock.keys() | {"codec_s", "wait_s"}
    assert (stock["row"], ours["row"]) == ("stock Horovod", "gradwire NoCompression")
    assert stock["sent_bytes"] == ours["sent_bytes"] == 148 * 64 * 4
    assert all(isinstance(value, int | float) for row in (stock, ours) for key, value in row.items() if key != "row")
    assert "stock Horovod" in done.stdout
    assert "NoCompression" in done.stdout
