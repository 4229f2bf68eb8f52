"""`gradwire demo`: train a small GPT with and without compression, and show what that costs and saves."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from ..compressors.errors import MissingDependencyError
from .arguments import between, ds_config, folder_to_write, spec
from .runs import EXAMPLES, Job, Launcher, import_problem

__all__ = ["add_arguments", "run"]

COMPRESSIONS = ["none", "topk:ratio=0.01", "onebit"]
CONFIGS = [EXAMPLES / "ds_adam.json", EXAMPLES / "ds_onebit.json"]
OUT = Path(__file__).resolve().parent.parent / "out" / "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `gradwire demo`."""
    parser.add_argument("--np", type=between(1, 64), default=2, metavar="N", help="ranks (default: 2)")
    parser.add_argument("--mpi", action="store_true", help="Horovod over MPI instead of Gloo")
    parser.add_argument("--steps", type=between(1, 100_000), default=150, metavar="N", help="default: 150")
    parser.add_argument("--seed", type=between(0, 2**31 - 1), default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--compression",
        type=spec,
        action="append",
        metavar="SPEC",
        help=f"a run with Horovod; may be given several times (default: {', '.join(COMPRESSIONS)})",
    )
    parser.add_argument(
        "--config",
        type=ds_config,
        action="append",
        metavar="FILE",
        help="a run with DeepSpeed and this ds.json; may be given several times "
        f"(default: {', '.join(f'examples/{config.name}' for config in CONFIGS)})",
    )
    parser.add_argument("--out", type=folder_to_write, default=OUT, metavar="DIR", help="for picture, reports and logs")


def run(options: argparse.Namespace) -> int:
    """Train once per compression and once per ds.json; print a table and the picture's path.

    Where only one kind is asked for, there are no runs of the other.

    Raises:
        MissingDependencyError: rich or matplotlib is not installed.
        RunError: a training run failed.
    """
    try:
        from . import report, training
    except ImportError as error:
        raise MissingDependencyError(error.name or "rich", "demo", "gradwire demo") from error
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit like any other, which takes the ranks along
    results = training.train([*horovod_jobs(options), *deepspeed_jobs(options)])
    picture = options.out / "loss.png"
    report.picture(results, picture)
    report.show(results)
    print(f"\npicture: {picture}")
    return 0


def horovod_jobs(options: argparse.Namespace) -> list[Job]:
    specs = options.compression or ([] if options.config else COMPRESSIONS)
    launcher = choose_launcher(options.mpi) if specs else "gloo"
    return [job(options, spec, launcher, "--compression", spec) for spec in specs]


def choose_launcher(mpi: bool) -> Launcher:
    problem = import_problem("horovod.torch")
    if problem is None:
        return "mpi" if mpi else "gloo"
    print(f"Horovod cannot be used ({problem}): the same job runs over torch.distributed with Gloo", flush=True)
    return "torch"


def deepspeed_jobs(options: argparse.Namespace) -> list[Job]:
    configs = options.config or ([] if options.compression else CONFIGS)
    problem = import_problem("deepspeed") if configs else None
    if problem is not None:
        print(f"DeepSpeed cannot be used ({problem}): its runs are left out", flush=True)
        return []
    names = [f"DeepSpeed {optimizer_of(config)}" for config in configs]
    return [
        job(options, name if names.count(name) == 1 else f"{name}, {config.stem}", "deepspeed", "--config", str(config))
        for name, config in zip(names, configs, strict=True)
    ]


def optimizer_of(config: Path) -> str:
    return json.loads(config.read_text())["optimizer"]["type"]


def job(options: argparse.Namespace, name: str, launcher: Launcher, *choice: str) -> Job:
    common: dict[str, Any] = {"ranks": options.np, "steps": options.steps, "seed": options.seed, "folder": options.out}
    return Job(name=name, launcher=launcher, choice=choice, **common)


def main() -> int:
    from .cli import main as gradwire

    return gradwire(["demo", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
