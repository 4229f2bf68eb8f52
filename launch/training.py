"""Runs training jobs one after the other, each with a progress bar."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .report import Result
from .runs import Job, RunError, follow

__all__ = ["train"]


def train(jobs: Sequence[Job]) -> list[Result]:
    """Run all jobs.

    Raises:
        RunError: a job failed; those after it are not run.
    """
    loss = TextColumn("{task.fields[loss]}")
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), loss, TimeElapsedColumn()
    ) as bars:
        tasks = [bars.add_task(job.name, total=job.steps, loss="", start=False) for job in jobs]
        return [train_one(job, bars, task) for job, task in zip(jobs, tasks, strict=True)]


def train_one(job: Job, bars: Progress, task: TaskID) -> Result:
    steps: list[dict[str, float]] = []
    held_out_loss: float | None = None
    bars.start_task(task)
    for record in follow(job):
        if "step" in record:
            steps.append(record)
            bars.update(task, completed=record["step"], loss=f"loss {record['loss']:.3f}")
        else:
            held_out_loss = record["held_out_loss"]
    bars.stop_task(task)
    if held_out_loss is None:
        raise RunError(f"{job.name}: training ended early, after {len(steps)} of {job.steps} steps")
    return Result(name=job.name, records=steps, held_out_loss=held_out_loss)
