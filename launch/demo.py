"""`gradwire demo`: train a small GPT with and without compression, and show what that costs and saves."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from ..compressors.errors import MissingDependencyError
from .arguments import between, spec
from .runs import Job, Launcher, horovod_problem

__all__ = ["add_arguments", "run"]

COMPRESSIONS = ["none", "topk:ratio=0.01", "onebit"]
OUT = Path(__file__).resolve().parent.parent / "out" / "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `gradwire demo`."""
    parser.add_argument("--np", type=between(1, 64), default=2, metavar="N", help="ranks (default: 2)")
    parser.add_argument("--mpi", action="store_true", help="Horovod over MPI instead of Gloo")
    parser.add_argument("--steps", type=between(1, 100_000), default=250, metavar="N", help="default: 250")
    parser.add_argument("--seed", type=between(0, 2**31 - 1), default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--compression",
        type=spec,
        action="append",
        metavar="SPEC",
        help=f"may be given several times (default: {', '.join(COMPRESSIONS)})",
    )
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="for picture, reports and logs")


def run(options: argparse.Namespace) -> int:
    """Train once per compression; print a table and the picture's path.

    Raises:
        MissingDependencyError: rich or matplotlib is not installed.
        RunError: a training run failed.
    """
    try:
        from . import report, training
    except ImportError as error:
        raise MissingDependencyError(error.name or "rich", "demo", "gradwire demo") from error
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit like any other, which takes the ranks along
    results = training.train(jobs(options, choose_launcher(options.mpi)))
    picture = options.out / "loss.png"
    report.picture(results, picture)
    report.show(results)
    print(f"\npicture: {picture}")
    return 0


def choose_launcher(mpi: bool) -> Launcher:
    problem = horovod_problem()
    if problem is None:
        return "mpi" if mpi else "gloo"
    print(f"Horovod cannot be used ({problem}): the same job runs over torch.distributed with Gloo", flush=True)
    return "torch"


def jobs(options: argparse.Namespace, launcher: Launcher) -> list[Job]:
    return [
        Job(
            compression=compression,
            launcher=launcher,
            ranks=options.np,
            steps=options.steps,
            seed=options.seed,
            folder=options.out,
        )
        for compression in options.compression or COMPRESSIONS
    ]


def main() -> int:
    from .cli import main as gradwire

    return gradwire(["demo", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
