"""`gradwire bench`: step times through Horovod, as ratios measured side by side in one run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .bench_ranks import BENCHES
from .runs import RunError, environment, launch_command

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `gradwire bench`."""
    parser.add_argument("what", choices=sorted(BENCHES), help="which comparison")
    parser.add_argument("--np", type=int, default=2, help="number of ranks (2)")
    parser.add_argument("--mpi", action="store_true", help="Horovod over MPI instead of Gloo")
    parser.add_argument("--steps", type=int, default=30, help="measured steps of each row (30)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as a list of objects")


def run(options: argparse.Namespace) -> int:
    """Run the ranks, print the table."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "rows.json"
        command = [
            *launch_command("mpi" if options.mpi else "gloo", options.np),
            *(sys.executable, "-m", "gradwire.launch.bench_ranks", options.what, str(options.steps), str(report)),
        ]
        console = Console()
        with console.status(f"{options.what}: {options.steps} steps of each row on {options.np} ranks"):
            done = subprocess.run(command, env=environment(options.np), capture_output=True, text=True, check=False)
        if done.returncode != 0 or not report.exists():
            raise RunError(f"the ranks ended with status {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}")
        rows = json.loads(report.read_text())
    console.print(table(options.what, rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def table(title: str, rows: list[dict[str, float | str]]) -> Table:
    """The rows with their ratios to the first one."""
    result = Table("row", "step, median", "ratio", "sent per step", "codec", "wait", title=title)
    for row in rows:
        result.add_row(
            str(row["row"]),
            f"{1000 * float(row['step_s']):.1f} ms",
            f"{float(row['step_s']) / float(rows[0]['step_s']):.2f}",
            f"{float(row['sent_bytes']) / 1e6:.3f} MB",
            *(f"{1000 * float(row[key]):.1f} ms" if key in row else "-" for key in ("codec_s", "wait_s")),
        )
    return result
