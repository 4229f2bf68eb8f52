"""The demo's runs: followed to their end, stopped when they fail, and once for real."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from gradwire.launch import demo, runs
from gradwire.launch.runs import Job, RunError, follow
from gradwire.launch.training import train


def job(folder: Path, launcher: runs.Launcher = "torch") -> Job:
    choice = ("--compression", "topk:ratio=0.01")
    return Job(name="topk", launcher=launcher, choice=choice, ranks=2, steps=3, seed=0, folder=folder)


def instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let every job run this Python program; `sys.argv[1]` is its report."""
    monkeypatch.setattr(Job, "command", lambda self: [sys.executable, "-c", program, str(self.file(".jsonl"))])


def test_records_come_whole_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import sys, time
with open(sys.argv[1], "a") as report:
    for part in ['{"step": 1}\\n{"st', 'ep": 2}\\n', '{"held_out_loss": 3.0}\\n']:
        report.write(part)
        report.flush()
        time.sleep(0.25)
"""
    instead(monkeypatch, program)
    assert list(follow(job(tmp_path))) == [{"step": 1}, {"step": 2}, {"held_out_loss": 3.0}]


def test_a_failed_run_shows_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, "raise SystemExit('no such GPU')")
    with pytest.raises(RunError, match=r"(?s)status 1.*no such GPU"):
        list(follow(job(tmp_path)))


def test_a_run_that_stands_still_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "STALL_SECONDS", 0.3)
    instead(monkeypatch, "import time; time.sleep(600)")
    with pytest.raises(RunError, match=r"no step in 0 s"):
        list(follow(job(tmp_path)))


def test_a_run_without_a_final_record_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, "pass")
    with pytest.raises(RunError, match=r"after 0 of 3 steps"):
        train([job(tmp_path)])


def test_an_installed_package_without_examples_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "EXAMPLES", tmp_path)
    with pytest.raises(RunError, match=r"Run \./launch/demo in a clone"):
        list(follow(job(tmp_path)))


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("gloo", ["-m", "horovod.runner.launch", "-np", "3", "--gloo"]),
        ("mpi", ["-m", "horovod.runner.launch", "-np", "3", "--mpi", "--mpi-args=--oversubscribe"]),
        ("torch", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]),
        ("deepspeed", ["-m", "deepspeed.launcher.runner", "--num_gpus", "3", "--master_port", "29512"]),
    ],
)
def test_each_launcher_starts_as_many_ranks_as_asked(
    launcher: runs.Launcher, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "free_port", lambda: 29512)
    assert runs.launch_command(launcher, 3)[1:] == expected


def test_without_horovod_one_line_says_so_and_torch_takes_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "import_problem", lambda module: f"No module named '{module}'")
    assert demo.choose_launcher(mpi=False) == "torch"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "No module named 'horovod.torch'" in lines[0]
    assert "torch.distributed" in lines[0]


def test_with_horovod_the_options_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "import_problem", lambda module: None)
    assert [demo.choose_launcher(mpi) for mpi in (False, True)] == ["gloo", "mpi"]


def test_the_problem_with_a_missing_horovod_is_its_error_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "horovod.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert runs.import_problem("horovod.torch") == "ImportError: built for another torch"
    assert runs.import_problem("json") is None


def test_without_deepspeed_one_line_says_so_and_its_runs_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "import_problem", lambda module: f"No module named '{module}'")
    options = argparse.Namespace(config=None, compression=None)
    assert demo.deepspeed_jobs(options) == []
    assert capsys.readouterr().out == "DeepSpeed cannot be used (No module named 'deepspeed'): its runs are left out\n"


def records_of(report: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in report.read_text().splitlines()]


def test_real_steps(tmp_path: Path) -> None:
    onebit = json.loads(demo.CONFIGS[1].read_text())
    onebit["optimizer"]["params"]["freeze_step"] = 2
    (tmp_path / "ds.json").write_text(json.dumps(onebit))
    command = [sys.executable, "-m", "gradwire.launch.demo", "--steps=4", "--np=2", f"--out={tmp_path}"]
    command += ["--compression=topk:ratio=0.01", f"--config={tmp_path / 'ds.json'}"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "topk:ratio=0.01" in answer.stdout
    assert "DeepSpeed OneBitAdam" in answer.stdout
    assert f"picture: {tmp_path / 'loss.png'}" in answer.stdout
    assert (tmp_path / "loss.png").stat().st_size > 0
    topk = records_of(tmp_path / "topk_ratio=0.01.jsonl")
    assert [record.get("step") for record in topk] == [1, 2, 3, 4, None]
    assert topk[2]["raw_bytes"] > 20 * topk[2]["sent_bytes"] > 0
    adam = records_of(tmp_path / "DeepSpeed_OneBitAdam.jsonl")
    sent = [record["sent_bytes"] for record in adam[:4]]
    assert [record.get("step") for record in adam] == [1, 2, 3, 4, None]
    assert sent[:2] == [record["raw_bytes"] for record in adam[:2]], "the engine's own averages"
    compressed = sent[3] - sent[2]
    assert sent[2] - sent[1] == compressed
    assert 1 / 32 < compressed / sent[0] < 1 / 25
