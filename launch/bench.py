"""`gradwire bench`: times of steps and calls, as ratios measured side by side in one run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..compressors.errors import ConfigError, MissingDependencyError
from . import bench_codecs, bench_step
from .arguments import between, file_to_write
from .old_nccl import RELEASE
from .runs import RunError, environment, launch_command

__all__ = ["add_arguments", "run"]

#: the one without ranks, the one that goes over torch.distributed instead of Horovod, and the one on emulated hosts
CODECS, ONEBIT, STEP = "codecs", "onebit", "step"
PURPOSES = {
    "adapter": "many small gradients: what the Horovod adapter itself costs",
    "resnet50": "the gradients of a ResNet-50 through Horovod, by compressor",
    ONEBIT: "one averaged buffer: DeepSpeed's own 1-bit code, and ours",
}
#: where launch/setup puts it
OLD_DEEPSPEED = Path(sys.prefix) / f"deepspeed-{RELEASE}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `gradwire bench`."""
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, (purpose, add) in {
        **{name: (purpose, _add_rank_arguments) for name, purpose in PURPOSES.items()},
        CODECS: ("codecs against a copy of the gradient, in this process", bench_codecs.add_arguments),
        STEP: ("whole steps on emulated hosts, by system, compressor and rate", bench_step.add_arguments),
    }.items():
        add(kinds.add_parser(name, help=purpose, description=purpose, allow_abbrev=False))


def _add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--np", type=between(2, 64), default=2, metavar="N", help="ranks (default: 2)")
    parser.add_argument("--mpi", action="store_true", help="Horovod over MPI instead of Gloo")
    parser.add_argument(
        "--steps", type=between(1, 100_000), default=30, metavar="N", help="measured steps of each row (default: 30)"
    )
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write the rows as a list of objects")


def run(options: argparse.Namespace) -> int:
    """Measure, print the table.

    Raises:
        MissingDependencyError: Horovod, DeepSpeed or rich is not installed.
        ConfigError: an option does not fit this comparison.
        RunError: a rank failed, or a row's results are not what its inputs demand.
    """
    try:
        from rich.console import Console

        from .bench_table import codecs, table
    except ImportError as error:
        raise MissingDependencyError(error.name or "rich", "demo", "gradwire bench") from error
    console = Console()
    if options.what == STEP:
        return _run_step(options, console)
    if options.what == CODECS:
        with console.status("codecs") as status:
            rows = bench_codecs.rows(options, status.update)
        console.print(codecs(rows))
    else:
        check(options)
        with console.status(f"{options.what}: {options.steps} steps of each row on {options.np} ranks"):
            rows = measure(options)
        console.print(table(options.what, rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _run_step(options: argparse.Namespace, console: Any) -> int:
    try:
        from .bench_step.command import run_places
    except ImportError as error:
        raise MissingDependencyError(error.name or "matplotlib", "demo", "gradwire bench step") from error
    run_places(options, console)
    return 0


def check(options: argparse.Namespace) -> None:
    """That what the ranks need is there."""
    package = "deepspeed" if options.what == ONEBIT else "horovod"
    if find_spec(package) is None:
        raise MissingDependencyError(package, package, "gradwire bench")
    if options.what == ONEBIT and options.mpi:
        raise ConfigError("--mpi is for comparisons over Horovod, and onebit goes over Gloo: leave it out")
    if options.what == ONEBIT and not OLD_DEEPSPEED.is_dir():
        raise ConfigError(
            f"onebit compares with DeepSpeed {RELEASE}, which is not in {OLD_DEEPSPEED}: ./launch/setup puts it there"
        )


def measure(options: argparse.Namespace) -> Any:
    """What rank 0 reports: the rows as JSON has them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "rows.json"
        done = subprocess.run(
            [*command(options), str(options.steps), str(report)],
            env=environment(options.np) | ({"PYTHONPATH": str(OLD_DEEPSPEED)} if options.what == ONEBIT else {}),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not report.exists():
            raise RunError(f"the ranks ended with status {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}")
        return json.loads(report.read_text())


def command(options: argparse.Namespace) -> list[str]:
    """The ranks, without their last two arguments: steps and report."""
    if options.what == ONEBIT:
        return [*launch_command("torch", options.np), "-m", "gradwire.launch.bench_onebit"]
    launcher = launch_command("mpi" if options.mpi else "gloo", options.np)
    return [*launcher, sys.executable, "-m", "gradwire.launch.bench_ranks", options.what]
