"""What `gradwire bench` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

__all__ = ["Measured", "cells", "codecs", "table"]

#: a row's name and numbers, as the ranks report them
Measured = dict[str, float | str]

COLUMNS = ("row", "step, median", "ratio", "sent per step", "codec", "wait")


def table(title: str, rows: Sequence[Measured]) -> Table:
    """The rows with their ratios to the first one."""
    result = Table(*COLUMNS, title=title)
    for row in rows:
        result.add_row(*cells(row, rows[0]))
    return result


def cells(row: Measured, first: Measured) -> list[str]:
    """A row of the table; codec and wait are known of gradwire's rows only."""
    step, reference = float(row["step_s"]), float(first["step_s"])
    return [
        str(row["row"]),
        f"{1000 * step:.1f} ms",
        f"{step / reference:.2f}",
        f"{float(row['sent_bytes']) / 1e6:.3f} MB",
        *(f"{1000 * float(row[key]):.1f} ms" if key in row else "-" for key in ("codec_s", "wait_s")),
    ]


CODEC_COLUMNS = ("codec", "operation", "elements", "to memcpy", "per call", "bytes/element", "above the limit")


def codecs(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What `gradwire bench codecs` has measured; the limit is the fewest bytes that could say the same."""
    title = f"codecs: {rows[0]['kernels']} kernels, {rows[0]['dtype']}, threads: {rows[0]['threads']}"
    result = Table(*CODEC_COLUMNS, title=title)
    for row in rows:
        result.add_row(*codec_cells(row))
    return result


def codec_cells(row: Mapping[str, Any]) -> list[str]:
    """A row of that table."""
    return [
        row["codec"],
        row["op"],
        str(row["numel"]),
        f"{row['ratio_to_memcpy']:.2f}",
        f"{row['ns_per_call'] / 1000:.1f} µs",
        f"{row['wire_bytes'] / row['numel']:.4f}",
        f"{100 * (row['wire_bytes'] / row['limit_bytes'] - 1):.1f} %",
    ]
