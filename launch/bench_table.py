"""What `gradwire bench` shows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

__all__ = ["Measured", "cells", "table"]

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
