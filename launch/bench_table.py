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


CODEC_COLUMNS = (
    "codec",
    "elements",
    "threads",
    "encode",
    "decode-add",
    "encode",
    "decode-add",
    "bytes/element",
    "spare",
)


def codecs(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What `gradwire bench codecs` has measured: an operation's two columns are multiples of a copy, and times.

    `spare` is how much of the payload is more than the fewest bytes that could say the same.
    """
    first = rows[0]
    title = f"codecs: {first['kernels']} kernels, {first['dtype']}, {first['device']}; 1.00 is a copy in fp32"
    result = Table(title=title)
    for number, column in enumerate(CODEC_COLUMNS):
        result.add_column(column, justify="right" if number else "left", overflow="fold")
    encoded, decoded = ([row for row in rows if row["op"] == op] for op in ("encode", "decode_add"))
    for encode, decode in zip(encoded, decoded, strict=True):
        if encode["numel"] != first["numel"]:
            result.add_section()
        first = encode
        result.add_row(*codec_cells(encode, decode))
    return result


def codec_cells(encode: Mapping[str, Any], decode: Mapping[str, Any]) -> list[str]:
    """A row of that table."""
    return [
        encode["codec"],
        str(encode["numel"]),
        str(encode["threads"]),
        *(f"{row['ratio_to_memcpy']:.2f}" for row in (encode, decode)),
        *(_time(row["ns_per_call"]) for row in (encode, decode)),
        f"{encode['wire_bytes'] / encode['numel']:.4f}",
        f"{100 * (encode['wire_bytes'] / encode['limit_bytes'] - 1):.1f} %",
    ]


def _time(nanoseconds: float) -> str:
    return f"{nanoseconds / 1000:.1f} µs" if nanoseconds < 1e6 else f"{nanoseconds / 1e6:.2f} ms"
