"""The command line of `gradwire bench step`."""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..arguments import between, file_to_write
from .models import MODELS
from .names import ROWS, Name, chosen

__all__ = ["PICTURE", "UNSHAPED", "add_arguments", "bits_per_second", "rate"]

UNSHAPED = "unshaped"
RATES = ["100mbit", "1gbit", "10gbit", UNSHAPED]
RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg])bit")
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
SLOWEST, FASTEST = 64e3, 100e9
PICTURE = Path("out") / "bench" / "step.png"
Value = TypeVar("Value")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is measured, and where the results go."""
    parser.add_argument(
        "--model",
        choices=list(MODELS),
        default="gpt-24.6m",
        help="gpt-small is really trained, the others take steps of no length (default: gpt-24.6m)",
    )
    parser.add_argument(
        "--hosts", type=listed(between(2, 64)), default=[4], metavar="N,…", help="emulated hosts (default: 4)"
    )
    parser.add_argument(
        "--rate",
        type=listed(rate),
        default=RATES,
        metavar="RATE,…",
        help=f"of each host's link, as gradwire cluster has it (default: {','.join(RATES)})",
    )
    parser.add_argument(
        "--rows",
        type=rows,
        default=list(ROWS),
        metavar="NAME,…",
        help='systems, compressors, or parts of their names, such as "topk" or "DDP fp16" (default: all)',
    )
    parser.add_argument(
        "--steps", type=between(1, 100_000), default=10, metavar="N", help="timed steps of each row (default: 10)"
    )
    parser.add_argument("--ranks-per-host", type=between(1, 64), default=1, metavar="N", help="default: 1")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write the rows as a list of objects")
    parser.add_argument(
        "--picture", type=file_to_write, metavar="FILE", help=f"step time against rate (default: {PICTURE})"
    )


def rows(text: str) -> list[Name]:
    """For argparse: rows by their names or parts of them."""
    return chosen(text.split(","))


def rate(text: str) -> str:
    """For argparse: what `gradwire cluster` takes."""
    speed = bits_per_second(text)
    if text != UNSHAPED and not (speed is not None and SLOWEST <= speed <= FASTEST):
        raise ArgumentTypeError(
            f"{text!r} is not allowed; allowed are rates from 64kbit to 100gbit, such as 2.5gbit, and {UNSHAPED}"
        )
    return text


def bits_per_second(text: str) -> float | None:
    """Of a rate; None: as fast as can be."""
    found = RATE.fullmatch(text)
    return float(found[1]) * UNITS[found[2]] if found else None


def listed(value: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """Several values with commas in between, each once."""
    return lambda text: list(dict.fromkeys(value(word.strip()) for word in text.split(",")))
