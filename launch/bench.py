"""`gradwire bench`: step times through Horovod, as ratios measured side by side in one run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..compressors.errors import MissingDependencyError
from .arguments import between, file_to_write
from .bench_ranks import BENCHES
from .runs import RunError, environment, launch_command

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `gradwire bench`."""
    parser.add_argument("what", choices=sorted(BENCHES), help="which comparison")
    parser.add_argument("--np", type=between(2, 64), default=2, metavar="N", help="ranks (default: 2)")
    parser.add_argument("--mpi", action="store_true", help="Horovod over MPI instead of Gloo")
    parser.add_argument(
        "--steps", type=between(1, 100_000), default=30, metavar="N", help="measured steps of each row (default: 30)"
    )
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write the rows as a list of objects")


def run(options: argparse.Namespace) -> int:
    """Run the ranks, print the table.

    Raises:
        MissingDependencyError: Horovod or rich is not installed.
        RunError: a rank failed, or a row's updates are not what its gradients demand.
    """
    try:
        from rich.console import Console

        from .bench_table import table
    except ImportError as error:
        raise MissingDependencyError(error.name or "rich", "demo", "gradwire bench") from error
    if find_spec("horovod") is None:
        raise MissingDependencyError("horovod", "horovod", "gradwire bench")
    console = Console()
    with console.status(f"{options.what}: {options.steps} steps of each row on {options.np} ranks"):
        rows = measure(options)
    console.print(table(options.what, rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def measure(options: argparse.Namespace) -> Any:
    """What rank 0 reports: the rows as JSON has them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "rows.json"
        command = [
            *launch_command("mpi" if options.mpi else "gloo", options.np),
            *(sys.executable, "-m", "gradwire.launch.bench_ranks", options.what, str(options.steps), str(report)),
        ]
        done = subprocess.run(command, env=environment(options.np), capture_output=True, text=True, check=False)
        if done.returncode != 0 or not report.exists():
            raise RunError(f"the ranks ended with status {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}")
        return json.loads(report.read_text())
