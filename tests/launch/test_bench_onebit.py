"""`gradwire bench onebit`: what it needs, that it verifies what it measured, and one real run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gradwire.compressors.errors import ConfigError, UnsupportedError
from gradwire.launch import bench, bench_onebit, cli, old_nccl
from gradwire.launch.bench_onebit import Row, make_errors, verify

CALLS = 4


def parse(*arguments: str) -> argparse.Namespace:
    return cli.command_line().parse_args(["bench", "onebit", *arguments])


def test_horovod_s_mpi_does_not_go_with_it() -> None:
    with pytest.raises(ConfigError, match=r"--mpi.*leave it out"):
        bench.run(parse("--mpi"))


def test_without_the_old_release_it_says_where_that_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "OLD_DEEPSPEED", tmp_path / "deepspeed-0.19.6")
    with pytest.raises(ConfigError, match=r"not in .*deepspeed-0\.19\.6.*launch/setup"):
        bench.run(parse())


def test_another_release_is_not_taken_for_the_old_one() -> None:
    with pytest.raises(UnsupportedError, match=r"0\.19\.8 .*0\.19\.6 first on PYTHONPATH"):
        old_nccl.make_backend()


# The verification, with one rank.


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(bench_onebit, "NUMEL", 100)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def values() -> torch.Tensor:
    return torch.randn(bench_onebit.NUMEL, generator=torch.Generator().manual_seed(1))


def measured(values: torch.Tensor) -> list[Row]:
    """An exact row and two that lag behind by half of the values, which lies in their errors."""
    rows = [Row("exact", torch.clone, 0), *(Row(name, torch.clone, 0, make_errors()) for name in ("old", "ours"))]
    for row in rows:
        row.seconds, row.last = [0.01] * CALLS, values.clone()
        row.total = CALLS * values
        for error in row.errors:
            error[: values.numel()] += 0.25 * values
            row.total -= 0.25 * values
    return rows


def test_right_results_pass(values: torch.Tensor) -> None:
    verify(measured(values), values)


def no_errors(row: Row) -> None:
    for error in row.errors:
        error.zero_()


@pytest.mark.parametrize(
    ("falsify", "text"),
    [
        (lambda row: row.total.add_(row.last, alpha=-1), "25.0% away"),
        (lambda row: row.total.neg_(), "away from the mean"),
        (no_errors, "12.5% away"),
        (lambda row: row.last[3:4].fill_(float("nan")), "not finite"),
        (lambda row: row.last[3:4].mul_(1.0001), "differs from the old code's"),
    ],
    ids=["a call too few", "sign", "what is owed", "nan", "another number"],
)
def test_wrong_results_do_not_pass(falsify: Callable[[Row], object], text: str, values: torch.Tensor) -> None:
    rows = measured(values)
    falsify(rows[2])
    with pytest.raises(SystemExit, match=f"ours: the result .*{text}"):
        verify(rows, values)


def test_ranks_with_different_results_do_not_pass(values: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_gather", lambda slots, tensor: slots[0].copy_(tensor + 1))
    with pytest.raises(SystemExit, match="exact: the result differs between ranks"):
        verify(measured(values), values)


def test_two_real_steps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gradwire.launch.cli", "bench", "onebit", "--steps=2"]
    command += [f"--json={tmp_path / 'rows.json'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["row"] for row in rows] == ["Gloo, fp32", "DeepSpeed 0.19.6", "gradwire"]
    assert [row["sent_bytes"] for row in rows] == [4 << 22, 2 * (4 + (4 << 20) // 16), 2 * (4 + (4 << 20) // 16)]
    assert all(row["step_s"] > 0 for row in rows)
    assert "0.524 MB" in done.stdout
