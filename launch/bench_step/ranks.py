"""A rank of `gradwire bench step`: `python -m gradwire.launch.bench_step.ranks TASK MASTER INTERFACE`, by horovodrun.

All rows of all systems run in one process, one after the other, round after round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch import nn

from .checking import Sketcher, WrongResult, check_bytes, verified_step
from .link import sent_bytes
from .models import MODELS, Model, alias, initial
from .names import OFF, ROWS, Name
from .summing import Sample, summaries
from .systems import Row, make_row

__all__ = ["Rounds", "Task", "guarded", "main"]

#: rounds before the first timed one: DDP lays its buckets anew after the first, PowerSGD compresses from the third on.
#: In the last of them, and once more after the timed ones, results are verified
WARM_UP = 4
LEARNING_RATE = 1e-3
TIMEOUT = timedelta(minutes=10)


class Task(TypedDict):
    """What a file of JSON tells the ranks.

    Attributes:
        model: its name.
        rows: their systems and compressors.
        steps: timed ones of each row.
        ranks_per_host: that share an interface.
        port: on the first host, for ranks to find each other.
        report: the file that rank 0 writes lines of JSON to.
    """

    model: str
    rows: list[list[str]]
    steps: int
    ranks_per_host: int
    port: int
    report: str


def main(task: Task, master: str, interface: str) -> None:
    """Measure all rows; rank 0 reports them.

    Raises:
        WrongResult: on all ranks.
    """
    import horovod.torch as hvd

    hvd.init()
    os.environ.setdefault("LOCAL_RANK", str(hvd.local_rank()))  # DeepSpeed wants to see it
    where = f"tcp://{master}:{task['port']}"
    dist.init_process_group("gloo", init_method=where, rank=hvd.rank(), world_size=hvd.size(), timeout=TIMEOUT)
    rounds = Rounds(task, interface)
    rounds.run()
    rows = rounds.found()
    if dist.get_rank() == 0:
        tell(task, rows=rows)
    dist.barrier()
    dist.destroy_process_group()


def tell(task: Task, **record: Any) -> None:
    """Add a line to the report."""
    with Path(task["report"]).open("a") as report:
        report.write(json.dumps(record) + "\n")


def guarded(task: Task, *place: str) -> None:
    """As `main`; what fails is in the report before other ranks notice and fail too."""
    try:
        main(task, *place)
    except WrongResult as error:  # on all ranks alike
        if dist.get_rank() == 0:
            tell(task, error=str(error))
        sys.exit(str(error))
    except Exception as error:
        tell(task, error=f"rank {os.environ.get('HOROVOD_RANK', '?')} failed: {type(error).__name__}: {error}")
        raise


class Rounds:
    """All rows, and what was measured of each.

    Args:
        interface: where bytes are counted.
    """

    def __init__(self, task: Task, interface: str) -> None:
        self._task = task
        self._interface = interface
        self._model = MODELS[task["model"]]
        self._sketcher = Sketcher(max(self._model.sizes.values()))
        names = [name for name in ROWS if list(name) in task["rows"]]
        self._rows = list(self._make(names))
        self._samples: dict[Name, list[Sample]] = {name: [] for name in names}
        self._losses: dict[Name, list[float]] = {name: [] for name in names}

    def run(self) -> None:
        """Every row once in a round; every other round backwards, so that no row has always the same one before it.

        Raises:
            WrongResult: on all ranks.
        """
        timed = range(WARM_UP, WARM_UP + self._task["steps"])
        for number in range(timed.stop + 1):
            for row in self._rows[:: -1 if number % 2 else 1]:
                self._show(round=number, rounds=timed.stop + 1, row=str(row.name))
                self._turn(row, number, timed)

    def found(self) -> list[dict[str, Any]]:
        """The rows as they are reported, on every rank.

        Raises:
            WrongResult: gradwire's account does not agree with the kernel's.
        """
        everywhere: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, (self._samples, self._losses))
        names = list(self._samples)
        samples = {name: [samples[name] for samples, _ in everywhere] for name in names}
        rows = summaries(names, samples, self._task["ranks_per_host"])
        if self._task["ranks_per_host"] == 1:
            check_bytes(rows)
        for name, row in zip(names, rows, strict=True):
            if self._model.trains:
                losses = [[losses[name][which] for _, losses in everywhere] for which in (0, -1)]
                row["loss_first"], row["loss_last"] = (sum(one) / len(one) for one in losses)
        return rows

    def _make(self, names: list[Name]) -> Iterator[Row]:
        if any(name.family == "DeepSpeed" for name in names):
            from . import deepspeed_rows

            deepspeed_rows.start()
        values = initial(self._model)
        for name in names:
            self._show(making=str(name))
            own = {key: value.clone() for key, value in values.items()} if self._model.trains else values
            yield make_row(name, alias(self._model, own), lambda parameters: optimizer(self._model, parameters))

    def _show(self, **record: Any) -> None:
        if dist.get_rank() == 0:
            tell(self._task, **record)

    def _turn(self, row: Row, number: int, timed: range) -> None:
        batch = self._model.batch(dist.get_rank(), number)
        dist.barrier()
        if number in (timed.start - 1, timed.stop) and row.name.compressor != OFF:
            loss = verified_step(row, batch, self._sketcher)
        else:
            loss, sample = self._step(row, batch)
            if number in timed:
                self._samples[row.name].append(sample)
        self._losses[row.name].append(float(loss))
        row.free()

    def _step(self, row: Row, batch: Any) -> tuple[torch.Tensor, Sample]:
        before, begun = sent_bytes(self._interface), time.perf_counter()
        loss = row.step(batch)
        seconds = time.perf_counter() - begun
        dist.barrier()  # what this host has sent, others have now, so it is counted
        after = sent_bytes(self._interface)
        sent = None if before is None or after is None else after - before
        if row.statistics is None:
            return loss, Sample(seconds, sent)
        last = row.statistics().last
        return loss, Sample(seconds, sent, last.codec_seconds, last.wait_seconds, last.sent_bytes)


def optimizer(model: Model, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """One that learns; or one that does the same work every time, and changes nothing."""
    if model.trains:
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE)
    return torch.optim.SGD(parameters, lr=0.0)


if __name__ == "__main__":
    guarded(json.loads(Path(sys.argv[1]).read_text()), *sys.argv[2:])
