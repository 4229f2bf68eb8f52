"""DeepSpeed's own launcher: two real ranks over Gloo, with a script of today, an old one, and a module that fails."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ...launching import run_job

HERE = Path(__file__).parent
LIMIT = 120.0
FREEZE = 3
CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "optimizer": {
        "type": "OneBitAdam",
        "params": {"lr": 1e-2, "freeze_step": FREEZE, "cuda_aware": False, "comm_backend_name": "nccl"},
    },
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    return path


def launch(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """With a port of its own: DeepSpeed's default may be taken."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    *program, first = command[: command.index("--num_gpus") + 1]
    return run_job([*program, f"--master_port={port}", first, *command[len(program) + 1 :]], LIMIT, folder)


def test_one_line_makes_a_configuration_run(config: Path) -> None:
    script = [str(HERE / "configured.py"), "--deepspeed", "--deepspeed_config", str(config)]
    done = launch("deepspeed", "--num_gpus", "2", *script, folder=config.parent)
    assert done.returncode == 0, done.stdout
    ranks: list[dict[str, Any]] = [json.loads((config.parent / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [results.pop("ranks") for results in ranks] == [
        {"world": 2, "backend": "gloo", "local": rank} for rank in range(2)
    ]
    for results in ranks:
        assert list(results) == ["ds.json", "onebitadam", "ONEBITADAM", "OnebitAdam"]
        for run in results.values():
            assert run["averaged"] == [True] * FREEZE + [False] * (len(run["losses"]) - FREEZE)
            assert all(run["equal"])
            assert run["losses"][-1] < 0.8 * run["losses"][0]
            assert run == results["ds.json"], "a letter case changes nothing"
            assert 0 < run["sent"] < run["raw"] / 10


def test_a_script_that_must_not_be_touched_runs(config: Path) -> None:
    script = [str(HERE / "old_style.py"), "--config", str(config)]
    done = launch("gradwire", "deepspeed", "--num_gpus", "2", *script, folder=config.parent)
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        assert (config.parent / f"rank{rank}.txt").read_text().splitlines() == [
            "json True True True",
            "client OneBitAdam True True",
            "client OneBitLamb True True",
            "client ZeroOneAdam True True",
            "backend 2 0.0",
        ]


def test_options_of_the_launcher_and_exit_codes_come_through(config: Path) -> None:
    package = config.parent / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        "import os, sys\n"
        "assert 'gradwire.deepspeed_comp' in sys.modules\n"
        "print('rank', os.environ['RANK'], __name__, sys.argv[1:], flush=True)\n"
        "sys.exit(7)\n"
    )
    options = ["--num_gpus", "2", "--module", "--no_local_rank", "--enable_each_rank_log", "logs"]
    done = launch("gradwire", "deepspeed", *options, "package.train", "--config=ds.json", folder=config.parent)
    assert done.returncode == 7, done.stdout
    logs = "".join(sorted(path.read_text() for path in (config.parent / "logs").iterdir()))
    assert "rank 0 __main__ ['--deepspeed_config=ds.json']" in logs


def test_the_example_counts_exactly_what_is_sent(tmp_path: Path) -> None:
    script = str(HERE / "traffic.py")
    done = run_job(["torchrun", "--standalone", "--nproc-per-node", "2", script], LIMIT, tmp_path)
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        results = json.loads((tmp_path / f"traffic{rank}.json").read_text())
        for pairs in results.values():
            assert all(counted == sent > 0 for counted, sent in pairs), results
        adam, onebit = ([0, *(sent for _, sent in pairs)] for pairs in results.values())
        steps = [(adam[i + 1] - adam[i], onebit[i + 1] - onebit[i]) for i in range(4)]
        assert all(dense == other for dense, other in steps[:2])
        assert all(dense > 10 * other for dense, other in steps[2:])
