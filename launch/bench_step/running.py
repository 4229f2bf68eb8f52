"""The ranks of `gradwire bench step` on emulated hosts, followed through the report that rank 0 writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..runs import Job, RunError, follow
from .names import Name

__all__ = ["Measuring", "measure"]

#: in a host's own network every port is free
PORT = 29400


@dataclass(frozen=True, kw_only=True)
class Measuring(Job):
    """All rows on so many hosts at one rate.

    Attributes:
        model: what is trained.
        hosts: how many.
        rate: of their links.
        ranks_per_host: as it says.
        rows: what is measured.
    """

    model: str
    hosts: int
    rate: str
    ranks_per_host: int
    rows: Sequence[Name]

    @property
    def stall_seconds(self) -> float:
        """Links may be very slow, and a step that is verified sends more than others."""
        return 900.0

    def command(self) -> list[str]:
        """`gradwire cluster … -- horovodrun … python -m gradwire.launch.bench_step.ranks …`."""
        cluster = ["cluster", "--hosts", str(self.hosts), "--rate", self.rate]
        cluster += ["--ranks-per-host", str(self.ranks_per_host), "--"]
        horovodrun = ["-m", "horovod.runner.launch", "-np", "{ranks}", "-H", "{hosts}", "--gloo"]
        ranks = ["-m", "gradwire.launch.bench_step.ranks", str(self.file(".task")), "{master}", "{interface}"]
        return [
            *(sys.executable, "-m", "gradwire.launch.cli", *cluster),
            *(sys.executable, *horovodrun),
            *(sys.executable, *ranks),
        ]

    def task(self) -> dict[str, Any]:
        """What the ranks have to know."""
        return {
            "model": self.model,
            "rows": [list(name) for name in self.rows],
            "steps": self.steps,
            "ranks_per_host": self.ranks_per_host,
            "port": PORT,
            "report": str(self.file(".jsonl")),
        }


def measure(job: Measuring, show: Callable[[str], object]) -> list[dict[str, Any]]:
    """The rows as they are reported; `show` hears how far it is.

    Raises:
        RunError: there can be no such hosts, a rank failed, or a row's gradients are wrong.
    """
    job.file(".task").write_text(json.dumps(job.task()))
    found: list[dict[str, Any]] | None = None
    try:
        for line in follow(job):
            record: dict[str, Any] = dict(line)
            if "error" in record:
                raise RunError(f"{job.name}: {record['error']}")
            found = record.get("rows", found)
            show(progress(record))
    except RunError as error:
        raise RunError(refusal(job) or str(error)) from error
    if found is None:
        raise RunError(f"{job.name}: the ranks ended without a report; their log is {job.file('.log')}")
    place = {"model": job.model, "hosts": job.hosts, "rate": job.rate, "ranks_per_host": job.ranks_per_host}
    return [{"system": row.pop("system"), "compressor": row.pop("compressor"), **place, **row} for row in found]


def progress(record: dict[str, Any]) -> str:
    """A line of it."""
    if "round" in record:
        return f"round {record['round'] + 1} of {record['rounds']}: {record['row']}"
    return f"making {record['making']}" if "making" in record else "done"


def refusal(job: Job) -> str | None:
    """What `gradwire cluster` said where it made no hosts."""
    log = job.file(".log").read_text(errors="replace").splitlines()
    return next((line.removeprefix("gradwire: ") for line in reversed(log) if line.startswith("gradwire: ")), None)
