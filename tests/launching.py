"""Start a job of its own from a test, with a time limit for the whole of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

__all__ = ["Backend", "run_horovod", "run_job"]

Backend = Literal["gloo", "mpi"]

BACKEND_OPTIONS = {"gloo": ["--gloo"], "mpi": ["--mpi", "--mpi-args=--oversubscribe"]}
LAUNCHER_VARIABLES = ("HOROVOD_", "OMPI_", "PMIX_")


def run_horovod(
    script: Path | str, ranks: int, backend: Backend, timeout: float, arguments: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a script on `ranks` processes of this machine; output and errors of all ranks are in `stdout`.

    Raises:
        subprocess.TimeoutExpired: not done after `timeout` seconds; all processes are killed, `output` is theirs.
    """
    job = ["horovodrun", "-np", str(ranks), "-H", f"localhost:{ranks}", *BACKEND_OPTIONS[backend]]
    return run_job([*job, sys.executable, str(script), *arguments], timeout)


def run_job(
    command: Sequence[str], timeout: float, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of this virtual environment; output and errors of all its processes are in `stdout`.

    Args:
        folder: where it runs.
        variables: what its environment has besides this process's.

    Raises:
        subprocess.TimeoutExpired: as above.
    """
    here = Path(sys.executable).parent
    process = subprocess.Popen(
        [str(here / command[0]), *command[1:]],
        cwd=folder,
        env=_environment(here) | dict(variables or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        output = _stop(process)
        raise subprocess.TimeoutExpired(command, timeout, output) from error
    return subprocess.CompletedProcess(command, process.returncode, output)


def _stop(process: subprocess.Popen[str]) -> str:
    """Ask first: a launcher takes along its ranks, which may be sessions of their own."""
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=20)[0]
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def _environment(here: Path) -> dict[str, str]:
    """This process's environment without what a launcher, if it was started by one, has put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    kept |= {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    if os.geteuid() == 0:  # Open MPI refuses root unless told twice
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept
