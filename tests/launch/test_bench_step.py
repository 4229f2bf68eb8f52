"""`gradwire bench step`: what it accepts, what it shows and writes, what it refuses, and one real run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gradwire.compressors.errors import ConfigError, MissingDependencyError
from gradwire.launch import cli
from gradwire.launch.bench_step import command, memory, options, report
from gradwire.launch.bench_step.names import OFF, ROWS, Name, baseline, chosen, sixteen_bits
from gradwire.launch.bench_step.running import Measuring, measure
from gradwire.launch.bench_step.summing import Sample, summaries
from gradwire.launch.runs import RunError
from rich.console import Console
from support import clusters

KEYS = ["system", "compressor", "model", "hosts", "rate", "step_s", "compute_s", "exposed_s", "codec_s", "bytes_sent"]
TOPK = "TopK(ratio=0.01)"


def parse(*arguments: str) -> argparse.Namespace:
    return cli.command_line().parse_args(["bench", "step", *arguments])


def labels(names: list[Name]) -> list[str]:
    return [str(name) for name in names]


# Options.


def test_what_is_measured_by_default() -> None:
    found = parse()
    assert (found.model, found.hosts, found.rate) == ("gpt-24.6m", [4], ["100mbit", "1gbit", "10gbit", "unshaped"])
    assert (found.steps, found.ranks_per_host, found.rows) == (10, 1, list(ROWS))


def test_lists() -> None:
    found = parse("--hosts=2,4,8,4", "--rate=100mbit, unshaped", "--rows=DDP fp16,zero 2")
    assert (found.hosts, found.rate) == ([2, 4, 8], ["100mbit", "unshaped"])
    assert labels(found.rows) == [
        *("DDP no communication", "DDP fp16", "DeepSpeed no communication", "DeepSpeed ZeRO 2 none")
    ]


@pytest.mark.parametrize(
    ("arguments", "named", "allowed"),
    [
        (["--model=gpt"], "'gpt'", "gpt-85m"),
        (["--hosts=4,1"], "'1'", "from 2 to 64"),
        (["--hosts="], "''", "from 2 to 64"),
        (["--rate=1gbit,fast"], "'fast'", "from 64kbit to 100gbit"),
        (["--rate=1kbit"], "'1kbit'", "from 64kbit to 100gbit"),
        (["--rate=1gb"], "'1gb'", "unshaped"),
        (["--rows=topk,zip"], "'zip'", "gradwire/DDP OneBit()"),
        (["--rows="], "''", "DDP PowerSGD(rank=1)"),
        (["--steps=0"], "'0'", "from 1 to 100000"),
        (["--ranks-per-host=65"], "'65'", "from 1 to 64"),
        (["--json=/no/such/folder/x.json"], "x.json", "a folder that exists"),
        (["--picture=/no/such/folder/x.png"], "x.png", "a folder that exists"),
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


# Rows.


def test_every_row_that_was_asked_for_is_there() -> None:
    stock = ["Horovod none", "Horovod fp16", "DDP none", "DDP fp16", "DDP bf16", "DDP PowerSGD(rank=1)"]
    stock += ["DeepSpeed ZeRO 0 none", "DeepSpeed ZeRO 2 none"]
    codecs = [TOPK, "OneBit()", "Int8()", "RandomK(ratio=0.01)", "FP16()"]
    ours = [f"gradwire/{system} {codec}" for system in ("Horovod", "DDP", "DeepSpeed") for codec in codecs]
    assert sorted(str(name) for name in ROWS if name.compressor != OFF) == sorted(stock + ours)


def test_rows_come_with_what_they_are_compared_with() -> None:
    assert labels(chosen(["gradwire/horovod topk"])) == ["plain no communication", f"gradwire/Horovod {TOPK}"]
    assert labels(chosen(["ddp fp16"])) == ["DDP no communication", "DDP fp16"], "a whole name means that row alone"
    assert {baseline(name).compressor for name in ROWS} == {OFF}
    assert baseline(Name("gradwire/DeepSpeed", TOPK)) == Name("DeepSpeed", OFF)


def test_rows_in_sixteen_bits() -> None:
    assert labels([name for name in ROWS if sixteen_bits(name)]) == ["Horovod fp16", "DDP fp16", "DDP bf16"]


# Numbers.


def test_the_slowest_rank_counts_and_medians_are_taken_over_rounds() -> None:
    off, topk = Name("DDP", OFF), Name("gradwire/DDP", TOPK)
    samples = {
        off: [[Sample(0.1, 10), Sample(0.3, 10), Sample(0.1, 10)], [Sample(0.2, 30), Sample(0.1, 30), Sample(0.1, 30)]],
        topk: [[Sample(1.0, 10, 0.1, 0.4, 5)] * 3, [Sample(0.9, 30, 0.3, 0.0, 7)] * 3],
    }
    first, second = summaries([off, topk], samples, ranks_per_host=2)
    assert (first["step_s"], first["compute_s"], first["cost_s"], first["exposed_s"]) == (0.2, 0.2, 0.0, None)
    assert (second["step_s"], second["compute_s"], second["cost_s"]) == (1.0, 0.2, 0.8)
    assert (second["codec_s"], second["exposed_s"], second["bytes_sent"]) == (0.2, 0.2, 10)
    assert second["bytes_counted"] == 6


def test_memory_is_asked_for_before_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 4.0e9 < memory.needed_bytes(ROWS, 24_636_672, trains=False) < 5.0e9, "4.3 to 4.6 GB were measured"
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    with pytest.raises(ConfigError, match=r"4 ranks need about .* GB .* 1\.0 GB are free: choose fewer --rows"):
        command.run_places(parse(), Console())
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    memory.check_memory(1000, 10**12)


@pytest.mark.parametrize("package", ["horovod", "deepspeed"])
def test_missing_packages(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(MissingDependencyError, match=f"gradwire bench step needs {package}"):
        command.check(parse())
    if package == "deepspeed":
        command.check(parse("--rows=ddp", "--model=gpt-small", "--hosts=2"))


# What is shown.


def measured(system: str, compressor: str, step: float, **others: Any) -> dict[str, Any]:
    row = {"system": system, "compressor": compressor, "model": "gpt-small", "hosts": 4, "rate": "1gbit"}
    row["ranks_per_host"] = 1
    row |= {"step_s": step, "compute_s": 0.1, "cost_s": step - 0.1, "exposed_s": None, "codec_s": None}
    return {**row, "bytes_sent": 40_000, **others}


def places() -> list[dict[str, Any]]:
    rows = [measured("DDP", OFF, 0.1), measured("DDP", "fp16", 0.5), measured("DDP", "bf16", 0.3)]
    rows += [measured("gradwire/DDP", TOPK, 0.2, exposed_s=0.05, codec_s=0.01)]
    return rows


def shown(rows: list[dict[str, Any]]) -> str:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(report.table(rows))
    return captured.get()


def test_ratios_are_to_the_best_row_in_sixteen_bits() -> None:
    text = shown(places())
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("  ")}
    assert lines["fp16"] == ["fp16", "500", "100", "400", "2.00", "-", "-", "0.04"]
    assert lines[TOPK] == [TOPK, "200", "100", "100", "0.50", "50", "10", "0.04"]
    assert lines["no"] == ["no", "communication", "100", "100", "-", "-", "-", "-", "0.04"]
    assert "ratio to DDP bf16" in " ".join(text.split())
    assert "…" not in text, "80 columns are enough"


def test_without_a_reference_or_a_counter_there_are_no_ratios_and_no_bytes() -> None:
    rows = [measured("DDP", OFF, 0.1, bytes_sent=None), measured("gradwire/DDP", TOPK, 0.2, bytes_sent=None)]
    text = shown(rows)
    assert [TOPK, "200", "100", "100", "-", "-", "-", "-"] in [line.split() for line in text.splitlines()]
    assert "those, not measured" in " ".join(text.split())


def test_losses_are_shown_where_a_model_is_trained() -> None:
    text = shown([row | {"loss_first": 5.55, "loss_last": 4.25} for row in places()])
    assert "5.55 →" in text
    assert text.count("4.25") == 4
    assert "…" not in text


@pytest.mark.parametrize(
    ("hosts", "rates"),
    [([4], ["100mbit", "unshaped"]), ([2, 4], ["1gbit", "100mbit"]), ([2, 8], ["1gbit"]), ([4], ["unshaped"])],
)
def test_a_picture(hosts: list[int], rates: list[str], tmp_path: Path) -> None:
    rows = [row | {"hosts": host, "rate": rate} for host in hosts for rate in rates for row in places()]
    report.picture(rows, tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_where_rates_are_drawn() -> None:
    assert report.positions(["100mbit", "2.5gbit", "unshaped"]) == {
        "100mbit": 1e8,
        "2.5gbit": 2.5e9,
        "unshaped": 2.5e10,
    }
    assert options.bits_per_second("64kbit") == 64e3


# The ranks, as they are started and followed.


def job(tmp_path: Path, program: str | None = None) -> Measuring:
    made = command.job_of(parse("--model=gpt-small", "--rows=ddp fp16", "--ranks-per-host=2"), 3, "1gbit", tmp_path)
    if program is None:
        return made

    class Standing(Measuring):
        """This Python program stands for the ranks; `report` is their report."""

        def command(self) -> list[str]:
            return [sys.executable, "-c", f"import sys; report = open({str(self.file('.jsonl'))!r}, 'a')\n{program}"]

    return Standing(**vars(made))


def test_the_command_is_one_that_a_user_could_type(tmp_path: Path) -> None:
    words = job(tmp_path).command()
    assert words[1:12] == [
        *("-m", "gradwire.launch.cli", "cluster", "--hosts", "3", "--rate", "1gbit", "--ranks-per-host", "2", "--"),
        sys.executable,
    ]
    assert words[12:19] == ["-m", "horovod.runner.launch", "-np", "{ranks}", "-H", "{hosts}", "--gloo"]
    assert words[-2:] == ["{master}", "{interface}"]


def test_progress_and_rows(tmp_path: Path) -> None:
    lines = [{"making": "DDP fp16"}, {"round": 0, "rounds": 3, "row": "DDP fp16"}]
    lines += [{"rows": [{"system": "DDP", "compressor": "fp16", "step_s": 0.1}]}]
    told: list[str] = []
    program = "\n".join(f"print({json.dumps(line)!r}, file=report)" for line in lines)
    (row,) = measure(job(tmp_path, program), told.append)
    assert list(row.values()) == ["DDP", "fp16", "gpt-small", 3, "1gbit", 2, 0.1]
    assert told == ["making DDP fp16", "round 1 of 3: DDP fp16", "done"]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ('print(\'{"error": "DDP fp16: ranks hold different gradients"}\', file=report)', "1gbit: DDP fp16: ranks"),
        ("sys.exit('gradwire: gradwire cluster may not make namespaces here (x): run it with sudo')", "^gradwire cl"),
        ("sys.exit('something else')", r"(?s)3 hosts, 1gbit: .* status 1.*something else"),
        ("", "ended without a report"),
    ],
    ids=["wrong", "refused", "failed", "silent"],
)
def test_what_goes_wrong_is_said(program: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=said):
        measure(job(tmp_path, program), lambda line: None)


@pytest.mark.parametrize("package", ["rich", "matplotlib"])
def test_without_an_optional_package_the_command_line_is_there_all_the_same(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from gradwire.launch.cli import main\n"
        "sys.exit(main(['version']) or main(['bench', 'step']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"needs {package}" in done.stderr
    assert 'pip install "gradwire[demo]"' in done.stderr


def test_two_real_hosts(tmp_path: Path) -> None:
    rows = f"--rows=horovod fp16,ddp fp16,powersgd,zero 2,gradwire/horovod topk,gradwire/ddp {TOPK},deepspeed onebit"
    words = [sys.executable, "-m", "gradwire.launch.cli", "bench", "step", "--model=gpt-small", "--hosts=2", rows]
    words += ["--rate=unshaped", "--steps=1", "--json=rows.json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    if clusters.refusal():
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, clusters.refusal())
        return
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "rows.json").read_text())
    assert [f"{row['system']} {row['compressor']}" for row in found] == labels(parse(rows).rows)
    for row in found:
        assert [key for key in row if key in KEYS] == KEYS
        assert row["step_s"] > 0
        assert row["loss_last"] < row["loss_first"], "it learns"
        if row["system"].startswith("gradwire"):
            assert 0 < row["bytes_counted"] <= row["bytes_sent"]
            assert row["codec_s"] > 0
            assert row["exposed_s"] >= 0
    assert "gpt-small, 2 hosts, unshaped" in done.stdout
    assert (tmp_path / "out" / "bench" / "step.png").exists()
