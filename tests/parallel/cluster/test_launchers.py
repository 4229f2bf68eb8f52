"""Real launchers inside `gradwire cluster`: every rank lands on its host, and an all-reduce is right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ...support.clusters import run_cluster

HERE = Path(__file__).parent
LIMIT = 100.0
HOROVOD = [sys.executable, str(HERE / "horovod_rank.py")]
TORCH = str(HERE / "torch_rank.py")


def launch(folder: Path, *command: str, ranks_per_host: int = 1) -> list[str]:
    """What ranks wrote."""
    options = ["--hosts=2", "--rate=100mbit", f"--ranks-per-host={ranks_per_host}"]
    variables = {"HOME": str(folder), "OMP_NUM_THREADS": "1"}  # Horovod caches in there which hosts it has reached
    done = run_cluster(*options, *command, str(folder), timeout=LIMIT, variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return [path.read_text() for path in sorted(folder.glob("rank*"))]


def expected(ranks_per_host: int = 1) -> list[str]:
    ranks = 2 * ranks_per_host
    total = sum(10.0**rank for rank in range(ranks))
    return [f"host{r // ranks_per_host + 1} {r % ranks_per_host} {ranks} {{{total}}}" for r in range(ranks)]


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_horovodrun(backend: str, tmp_path: Path) -> None:
    command = ["horovodrun", "-np", "{ranks}", "-H", "{hosts}", f"--{backend}", *HOROVOD]
    assert launch(tmp_path, "--", *command) == expected()


def test_mpirun(tmp_path: Path) -> None:
    command = ["mpirun", "--hostfile", "{hostfile}", "-np", "{ranks}", *HOROVOD]
    assert launch(tmp_path, "--", *command, ranks_per_host=2) == expected(2)


def test_torchrun(tmp_path: Path) -> None:
    command = ["torchrun", "--nnodes", "{hosts_count}", "--node-rank", "{host_index}"]
    command += ["--nproc-per-node", "{ranks_per_host}", "--master-addr", "{master}", TORCH]
    assert launch(tmp_path, "--everywhere", "--", *command, ranks_per_host=2) == expected(2)


def test_deepspeed_by_mpirun(tmp_path: Path) -> None:
    command = ["deepspeed", "--hostfile", "{hostfile}", "--launcher", "openmpi", "--no_local_rank", TORCH]
    assert launch(tmp_path, "--", *command) == expected()


def test_deepspeed_started_in_every_host(tmp_path: Path) -> None:
    command = ["deepspeed", "--hostfile", "{hostfile}", "--no_ssh", "--node_rank", "{host_index}"]
    command += ["--master_addr", "{master}", "--no_local_rank", TORCH]
    assert launch(tmp_path, "--everywhere", "--", *command) == expected()


def test_a_rank_that_fails_ends_the_job_with_its_status(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "import os, sys; sys.exit(3 * int(os.environ['OMPI_COMM_WORLD_RANK']))"]
    options = ["--hosts=2", "--rate=100mbit", "--"]
    done = run_cluster(*options, "mpirun", "--hostfile", "{hostfile}", "-np", "{ranks}", *failing, timeout=LIMIT)
    assert done.returncode == 3, done.stdout + done.stderr
