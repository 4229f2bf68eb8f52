"""One training run in real processes, followed through the report that its rank 0 writes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

from ..compressors.errors import GradwireError

__all__ = ["EXAMPLES", "Job", "Launcher", "RunError", "follow", "import_problem"]

Launcher = Literal["gloo", "mpi", "torch", "deepspeed"]

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = {"torch": "torch_gpt.py", "deepspeed": "deepspeed_gpt.py"}
STALL_SECONDS = 120.0
STOP_SECONDS = 20.0


class RunError(GradwireError, RuntimeError):
    """A training run failed, or made no progress; the text ends with the last lines of its log."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to train, and how.

    Attributes:
        name: what people call it.
        launcher: Horovod over Gloo or MPI, torch.distributed over Gloo, or DeepSpeed.
        choice: arguments of the script that make this job what it is.
        ranks: number of processes.
        steps: training steps.
        seed: of the parameters, the batches and the compressor.
        folder: where report and log go.
    """

    name: str
    launcher: Launcher
    choice: tuple[str, ...]
    ranks: int
    steps: int
    seed: int
    folder: Path

    @property
    def stall_seconds(self) -> float:
        """How long a step may take."""
        return STALL_SECONDS

    def file(self, suffix: str) -> Path:
        """A file of this run's own in `folder`."""
        return self.folder / f"{''.join(c if c.isalnum() or c in '.=-' else '_' for c in self.name)}{suffix}"

    def command(self) -> list[str]:
        """The command line, as a user would type it."""
        script = script_of(self.launcher)
        return [
            *launch_command(self.launcher, self.ranks),
            *([] if self.launcher in SCRIPTS else [sys.executable]),
            str(script),
            *self.choice,
            *("--steps", str(self.steps)),
            *("--seed", str(self.seed)),
            *("--report", str(self.file(".jsonl"))),
        ]


def import_problem(module: str) -> str | None:
    """Why a module cannot be used, or None. Asked in a process of its own: a broken build may crash its importer."""
    command = [sys.executable, "-c", f"import {module}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return None
    return (answer.stderr.strip().splitlines() or [f"importing it ends with status {answer.returncode}"])[-1]


def follow(job: Job) -> Iterator[dict[str, float]]:
    """Run the job and yield the records of its report as they come.

    Raises:
        RunError: it ended with an error, or a step took too long.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    job.file(".jsonl").write_text("")
    with job.file(".jsonl").open() as report, job.file(".log").open("w") as log, running(job, log) as process:
        yield from records(job, report, process)
    if process.returncode != 0:
        raise RunError(f"{job.name}: training ended with status {process.returncode}.{last_lines(job)}")


def records(job: Job, report: TextIO, process: subprocess.Popen[bytes]) -> Iterator[dict[str, float]]:
    unfinished = ""
    last = time.monotonic()
    while True:
        ended = process.poll() is not None  # asked before reading, so that the last records are not missed
        *lines, unfinished = (unfinished + report.read()).split("\n")
        yield from map(json.loads, lines)
        if ended:
            return
        last = time.monotonic() if lines else last
        if time.monotonic() - last > job.stall_seconds:
            raise RunError(f"{job.name}: no step in {job.stall_seconds:.0f} s.{last_lines(job)}")
        time.sleep(0.1)


@contextmanager
def running(job: Job, log: TextIO) -> Iterator[subprocess.Popen[bytes]]:
    """The job's processes, in a group of their own; whatever is left of them at the end is stopped."""
    process = subprocess.Popen(
        job.command(),
        env=environment(job.ranks),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the group to end, and insist after a while; horovodrun leaves its mpirun to us."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


def launch_command(launcher: Launcher, ranks: int) -> list[str]:
    if launcher == "torch":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    if launcher == "deepspeed":
        ports = ["--master_port", str(free_port())]
        return [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks), *ports]
    horovodrun = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
    return [*horovodrun, *(["--gloo"] if launcher == "gloo" else ["--mpi", "--mpi-args=--oversubscribe"])]


def free_port() -> int:
    """DeepSpeed's own choice is always the same one, which another job may have."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def script_of(launcher: Launcher) -> Path:
    script = EXAMPLES / SCRIPTS.get(launcher, "horovod_gpt.py")
    if not script.exists():
        raise RunError(f"{script} is not there: an installed gradwire has no examples. Run ./launch/demo in a clone")
    return script


def environment(ranks: int) -> dict[str, str]:
    """This process's environment, with what ranks that share one machine need."""
    additions = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
    }
    if os.geteuid() == 0:  # Open MPI refuses root unless told twice
        additions |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **additions}


def last_lines(job: Job, count: int = 8) -> str:
    log = job.file(".log")
    lines = log.read_text(errors="replace").splitlines()[-count:]
    return "\n  ".join([f" The end of {log}:", *lines])
