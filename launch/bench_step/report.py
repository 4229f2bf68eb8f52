"""What `gradwire bench step` shows: a table for each number of hosts and each rate, and a picture of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter
from rich import box
from rich.table import Table

from .names import OFF, ROWS, Name, sixteen_bits
from .options import bits_per_second

__all__ = ["picture", "reference", "table"]

Measured = Mapping[str, Any]
COLUMNS = (
    "row",
    " step\n   ms",
    " compute\n ms",
    " cost\n ms",
    " cost to\n 16 bits",
    " exposed\n ms",
    " codec\n ms",
    " sent\n MB",
)
CAPTION = (
    "Medians. Compute: the same step without communication; cost: what communication adds to it; to 16 bits: its ratio "
    "to {}. Exposed, codec: waiting, and encoding and decoding in whatever thread, as gradwire tells. Sent: per rank, "
    "as counted at the host's interface, with headers and what idle Horovods say to each other{}. All rows' gradients "
    "were verified."
)
#: where a link without a rate is drawn: so many times faster than the fastest that has one
BEYOND = 10.0
MARKERS = "osDv^<P*X"


def name_of(row: Measured) -> Name:
    return Name(row["system"], row["compressor"])


def reference(rows: Sequence[Measured]) -> Measured | None:
    """The stock row in 16 bits whose communication costs least; None: there is none, or it costs nothing."""
    candidates = [row for row in rows if sixteen_bits(name_of(row)) and row["cost_s"] > 0]
    return min(candidates, key=lambda row: row["cost_s"], default=None)


def table(rows: Sequence[Measured]) -> Table:
    """The rows of one place: all with the same model, hosts and rate."""
    best, first = reference(rows), rows[0]
    caption = CAPTION.format(f"{name_of(best)}, the best of those" if best else "those, not measured", chatter(rows))
    shown = Table(title=place_of(first), box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    shown.caption, shown.caption_justify = caption, "left"
    for column in (*COLUMNS, f" loss\n{first['loss_first']:.2f} →") if "loss_last" in first else COLUMNS:
        shown.add_column(column, justify="left" if column == "row" else "right", no_wrap=True)
    for system, group in groupby(rows, key=lambda row: row["system"]):
        shown.add_row(system)
        for row in group:
            shown.add_row(*cells(row, best))
    return shown


def chatter(rows: Sequence[Measured]) -> str:
    """How much is sent where no gradients are."""
    rates = [row["bytes_sent"] / row["step_s"] for row in rows if row["compressor"] == OFF and row["bytes_sent"]]
    return f" ({min(rates) / 1e6:.1f} MB/s)" if rates else ""


def place_of(row: Measured) -> str:
    ranks = f" of {row['ranks_per_host']} ranks" if row["ranks_per_host"] > 1 else ""
    return f"{row['model']}, {row['hosts']} hosts{ranks}, {row['rate']}"


def cells(row: Measured, best: Measured | None) -> list[str]:
    """A row of the table; its system is above it."""
    off = row["compressor"] == OFF
    return [
        f"  {row['compressor']}",
        milliseconds(row["step_s"]),
        milliseconds(row["compute_s"]),
        "-" if off else milliseconds(row["cost_s"]),
        "-" if off or best is None else f"{row['cost_s'] / best['cost_s']:.2f}",
        milliseconds(row["exposed_s"]),
        milliseconds(row["codec_s"]),
        "-" if row["bytes_sent"] is None else f"{row['bytes_sent'] / 1e6:.2f}",
        *([f"{row['loss_last']:.2f}"] if "loss_last" in row else []),
    ]


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f}"


def picture(rows: Sequence[Measured], path: Path) -> None:
    """Write step times as PNG: against the rate; with one rate against the hosts; with one of both, as bars."""
    hosts, rates = (list(dict.fromkeys(row[key] for row in rows)) for key in ("hosts", "rate"))
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        if len(rates) > 1:
            figure = against_rates(rows, hosts, rates)
        else:
            figure = Figure(figsize=(9, 7), layout="constrained")
            axes = figure.subplots()
            if len(hosts) > 1:
                curves(axes, rows, "hosts", {host: float(host) for host in hosts})
                axes.set(title=f"{rows[0]['model']}, {rates[0]}", xlabel="hosts", ylabel="seconds per step")
            else:
                bars(axes, rows)
                axes.set(title=place_of(rows[0]), xlabel="seconds per step")
        axes = figure.axes[0]
        if len(rates) > 1 or len(hosts) > 1:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
        figure.savefig(path, dpi=120)


def against_rates(rows: Sequence[Measured], hosts: Sequence[int], rates: Sequence[str]) -> Figure:
    """One panel for each number of hosts."""
    figure = Figure(figsize=(1 + 6 * len(hosts), 7), layout="constrained")
    panels = figure.subplots(1, len(hosts), sharey=True, squeeze=False)[0]
    for axes, host in zip(panels, hosts, strict=True):
        curves(axes, [row for row in rows if row["hosts"] == host], "rate", positions(rates))
        axes.set(title=f"{rows[0]['model']}, {host} hosts", xlabel="rate of each host's link")
    panels[0].set_ylabel("seconds per step")
    return figure


def bars(axes: Axes, rows: Sequence[Measured]) -> None:
    """What a step takes, and the part of it that is no communication."""
    names = [str(name_of(row)) for row in rows]
    axes.barh(names, [row["step_s"] for row in rows], color="tab:orange", label="communication")
    axes.barh(names, [min(row["compute_s"], row["step_s"]) for row in rows], color="tab:blue", label="compute")
    axes.invert_yaxis()
    axes.legend(frameon=False)


def positions(rates: Sequence[str]) -> dict[str, float]:
    """Where rates are drawn."""
    speeds = {rate: bits_per_second(rate) for rate in rates}
    fastest = max((speed for speed in speeds.values() if speed), default=1.0)
    return {rate: BEYOND * fastest if speed is None else speed for rate, speed in speeds.items()}


def curves(axes: Axes, rows: Sequence[Measured], key: str, places: Mapping[Any, float]) -> None:
    """One line for each row: colours tell compressors apart, styles tell systems."""
    names = list(dict.fromkeys(map(name_of, rows)))
    systems, compressors = (list(dict.fromkeys(name[which] for name in ROWS)) for which in (0, 1))
    colours = mpl.colormaps["tab10"]
    for name in names:
        points = sorted((places[row[key]], row["step_s"]) for row in rows if name_of(row) == name)
        axes.plot(
            *zip(*points, strict=True),
            label=str(name),
            color=colours(compressors.index(name.compressor) % 10),
            linestyle="--" if name.family == "DDP" else ":" if name.family == "DeepSpeed" else "-",
            marker=MARKERS[systems.index(name.system) % len(MARKERS)],
            markersize=5,
        )
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(list(places.values()), list(map(str, places)))
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.grid(alpha=0.25)
