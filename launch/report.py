"""What the demo shows: a table, and a picture of the loss against steps and against bytes sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["Result", "picture", "show", "table"]

SMOOTHING = 10
COLUMNS = (
    "run",
    "train\nloss",
    "held\nout",
    "bytes sent\nper step",
    "vs\nfp32",
    "vs\nfp16",
    "step\nms",
    "compute\nms",
    "codec\nms",
    "wait\nms",
)
CAPTION = (
    f"Losses in nats per byte; training: mean of the last {SMOOTHING} steps. "
    "Bytes: headers and indices included; fp32 and fp16 are a ring all-reduce of the same gradients."
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run: what its report said.

    Attributes:
        name: what people call it.
        records: one per step: step, loss, step_seconds, and the totals so far of codec_seconds, wait_seconds,
            sent_bytes, raw_bytes, fp16_bytes.
        held_out_loss: after the last step, in nats per byte.
    """

    name: str
    records: list[dict[str, float]]
    held_out_loss: float

    @property
    def training_loss(self) -> float:
        """The mean over the last steps."""
        return fmean(record["loss"] for record in self.records[-SMOOTHING:])

    def per_step(self, total: str) -> float:
        """A step's share of a total. The first step sets everything up and is left out where there are others."""
        first, last = self.records[0], self.records[-1]
        if len(self.records) == 1:
            return last[total]
        return (last[total] - first[total]) / (len(self.records) - 1)

    @property
    def step_seconds(self) -> float:
        return fmean(record["step_seconds"] for record in self.records[1:] or self.records)

    def smooth_losses(self) -> list[float]:
        losses = [record["loss"] for record in self.records]
        return [fmean(losses[max(0, i - SMOOTHING + 1) : i + 1]) for i in range(len(losses))]


def table(results: list[Result]) -> Table:
    """One row per run."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, caption=CAPTION, caption_justify="left")
    for column in COLUMNS:
        shown.add_column(column, justify="left" if column == "run" else "right", no_wrap=True)
    for result in results:
        shown.add_row(*row(result))
    return shown


def show(results: list[Result]) -> None:
    """Print the table."""
    Console().print(table(results))


def row(result: Result) -> list[str]:
    sent = result.per_step("sent_bytes")
    codec, wait = result.per_step("codec_seconds"), result.per_step("wait_seconds")
    times = (result.step_seconds, result.step_seconds - codec - wait, codec, wait)
    return [
        result.name,
        f"{result.training_loss:.3f}",
        f"{result.held_out_loss:.3f}",
        f"{sent:,.0f}",
        saving(result.per_step("raw_bytes"), sent),
        saving(result.per_step("fp16_bytes"), sent),
        *(f"{seconds * 1e3:.0f}" for seconds in times),
    ]


def saving(dense: float, sent: float) -> str:
    return f"{dense / sent:.1f}x" if sent else "-"


def picture(results: list[Result], path: Path) -> None:
    """Write the two curves of every run as PNG."""
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(12, 5), layout="constrained")
        by_steps, by_bytes = figure.subplots(1, 2, sharey=True)
        for result in results:
            plot(by_steps, result, [record["step"] for record in result.records])
            plot(by_bytes, result, [record["sent_bytes"] / 1e6 for record in result.records])
        by_steps.set(xlabel="step", ylabel="training loss (nats per byte)", title="Loss against steps")
        by_steps.xaxis.set_major_locator(MaxNLocator(integer=True))
        by_steps.legend(frameon=False)
        by_bytes.set(xlabel="MB sent per rank, log scale", title="Loss against bytes sent", xscale="log")
        by_bytes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        figure.savefig(path, dpi=120)


def plot(axes: Axes, result: Result, x: list[float]) -> None:
    style = "--" if result.name.startswith("DeepSpeed") else "-"  # where curves coincide, both are seen
    (line,) = axes.plot(x, result.smooth_losses(), linewidth=2, linestyle=style, label=result.name)
    axes.plot(x, [record["loss"] for record in result.records], linewidth=0.6, alpha=0.3, color=line.get_color())
    axes.grid(alpha=0.25)
