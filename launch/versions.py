"""`launch/versions`: a smoke run of the DeepSpeed adapter on every supported release, for maintainers."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table

from ..deepspeed_comp._host import SUPPORTED

__all__ = ["main"]

RANKS = 2
SECONDS = 600
#: begins the line for a case that a release cannot do without gradwire either
ALONE = "not by DeepSpeed itself: "
#: no compiling at installation or at the first use, no accelerator, no search for one
ENVIRONMENT = {"DS_BUILD_OPS": "0", "DS_SKIP_CUDA_CHECK": "1", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the releases beside the virtual environment's own one, run all cases on each, print a table.

    Returns:
        1 if any case failed.
    """
    parser = argparse.ArgumentParser(prog="launch/versions", description=__doc__)
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help=f"of {', '.join(SUPPORTED)} (default: all)")
    releases = parser.parse_args(arguments).releases or list(SUPPORTED)
    unknown = [release for release in releases if release not in SUPPORTED]
    if unknown:
        parser.error(f"{unknown[0]} is no supported release; those are {', '.join(SUPPORTED)}")
    console = Console()
    outcomes = {release: outcome(release, console) for release in releases}
    console.print(table(outcomes))
    lines = [line for by_case in outcomes.values() for line in by_case.values()]
    return int(any(line != "ok" and not line.startswith(ALONE) for line in lines))


def outcome(release: str, console: Console) -> dict[str, str]:
    """What became of every case: `ok`, or the error's first line."""
    folder = Path(sys.prefix) / f"deepspeed-{release}"
    log = Path("out") / "versions" / f"{release}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with console.status(f"DeepSpeed {release}: installing"), log.open("w") as output:
            if not (folder / "deepspeed").is_dir():
                call(install_command(folder, release), output)
        with console.status(f"DeepSpeed {release}: training; {log} tells more"), log.open("a") as output:
            report = log.with_suffix(".json")
            report.unlink(missing_ok=True)
            call(train_command(report), output, PYTHONPATH=str(folder))
    except subprocess.SubprocessError as error:
        return {"whole run": f"{type(error).__name__}: see {log}"}
    console.print(f"DeepSpeed {release}: done")
    return json.loads(report.read_text())


def install_command(folder: Path, release: str) -> list[str]:
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
    return [*pip, "--target", str(folder), f"deepspeed=={release}"]


def train_command(report: Path) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [*torchrun, "-m", "gradwire.launch.versions_ranks", str(report.resolve())]


def call(command: list[str], output: IO[str], **environment: str) -> None:
    subprocess.run(
        command,
        check=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **ENVIRONMENT, **environment},
    )


def table(outcomes: dict[str, dict[str, str]]) -> Table:
    """Cases down, releases across."""
    cases = list(dict.fromkeys(case for lines in outcomes.values() for case in lines))
    result = Table("case", *outcomes)
    for case in cases:
        result.add_row(case, *(lines.get(case, "-") for lines in outcomes.values()))
    return result


if __name__ == "__main__":
    sys.exit(main())
