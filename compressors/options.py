"""Checks for the options of compressors. Every error names the value and the range."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from .errors import ConfigError

__all__ = ["check_choice", "check_flag", "check_fraction", "check_int", "count", "nearest"]


def check_fraction(name: str, value: object) -> None:
    """A number in (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"{name} is {value!r}, expected a number in (0, 1]")


def check_int(name: str, value: object, low: int, high: int, multiple: int = 1) -> None:
    """An integer from `low` to `high`, divisible by `multiple`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high or value % multiple:
        kind = "an integer" if multiple == 1 else f"a multiple of {multiple}"
        raise ConfigError(f"{name} is {value!r}, expected {kind} from {low} to {high}")


def check_flag(name: str, value: object) -> None:
    """True or False, nothing else."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}, expected True or False")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """One of a few words."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(choices)}{nearest(value, choices)}")


def nearest(value: object, choices: Sequence[str]) -> str:
    """A hint such as " (did you mean 'l1'?)", or nothing."""
    close = difflib.get_close_matches(str(value), choices, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@lru_cache(maxsize=4096)
def count(ratio: float, numel: int) -> int:
    """`ratio * numel` rounded up, at least 1; 0 of 0. Exact: the ratio is the decimal number that it prints as."""
    return max(1, math.ceil(Fraction(repr(float(ratio))) * numel)) if numel else 0
