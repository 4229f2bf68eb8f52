"""What `gradwire bench step` does: place by place it has the ranks measure, and shows what they found."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from ...compressors.errors import MissingDependencyError
from .memory import check_memory, needed_bytes
from .models import MODELS
from .options import PICTURE
from .report import picture, table
from .running import Measuring, measure

__all__ = ["run_places"]


def run_places(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure every place, a number of hosts and a rate; each one's table is shown, and its rows written, at once.

    Raises:
        MissingDependencyError: Horovod or DeepSpeed is not installed.
        ConfigError: the ranks would not fit into the machine's memory.
        RunError: there can be no emulated hosts here, a rank failed, or a row's gradients are wrong.
    """
    check(options)
    rows: list[dict[str, Any]] = []
    with ending_in_order(), tempfile.TemporaryDirectory(prefix="gradwire-bench-") as folder:
        for hosts, rate in product(options.hosts, options.rate):
            job = job_of(options, hosts, rate, Path(folder))
            with console.status(job.name) as status:
                found = measure(job, lambda line, job=job, status=status: status.update(f"{job.name}: {line}"))
            rows += found
            console.print(table(found))
            if options.json is not None:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
            draw(options, rows)
    console.print(f"picture: {options.picture or PICTURE}")
    return rows


@contextmanager
def ending_in_order() -> Iterator[None]:
    """In this block SIGTERM and SIGHUP, unless ignored, are exits like any other, which take the ranks along."""
    numbers = [signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in numbers}
    heeded = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)


def check(options: argparse.Namespace) -> None:
    """That what the ranks need is there."""
    families = {name.family for name in options.rows}
    for package in ("horovod", *(["deepspeed"] if "DeepSpeed" in families else [])):
        if find_spec(package) is None:
            raise MissingDependencyError(package, package, "gradwire bench step")
    model = MODELS[options.model]
    each = needed_bytes(options.rows, sum(model.sizes.values()), model.trains)
    check_memory(max(options.hosts) * options.ranks_per_host, each)


def job_of(options: argparse.Namespace, hosts: int, rate: str, folder: Path) -> Measuring:
    return Measuring(
        name=f"{options.model}, {hosts} hosts, {rate}",
        launcher="gloo",
        choice=(),
        ranks=hosts * options.ranks_per_host,
        steps=options.steps,
        seed=0,
        folder=folder,
        model=options.model,
        hosts=hosts,
        rate=rate,
        ranks_per_host=options.ranks_per_host,
        rows=options.rows,
    )


def draw(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    path = options.picture or PICTURE
    if options.picture is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    picture(rows, path)
