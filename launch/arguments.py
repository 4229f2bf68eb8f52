"""Types for argparse that refuse a bad value with the allowed ones named."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from ..compressors import parse_spec
from ..compressors.errors import ConfigError

__all__ = ["between", "ds_config", "file_to_write", "folder_to_write", "spec"]


def between(low: int, high: int) -> Callable[[str], int]:
    """A whole number from `low` to `high`."""

    def number(text: str) -> int:
        if text.isdecimal() and low <= int(text) <= high:
            return int(text)
        raise ArgumentTypeError(f"{text!r} is not allowed; allowed are whole numbers from {low} to {high}")

    return number


def spec(text: str) -> str:
    """A spec string that `parse_spec` understands."""
    try:
        parse_spec(text)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def ds_config(text: str) -> Path:
    """A ds.json that names an optimizer."""
    try:
        config = json.loads(Path(text).read_text())
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"{text!r} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict) or "type" not in config.get("optimizer", {}):
        raise ArgumentTypeError(f'{text!r} names no optimizer; expected {{"optimizer": {{"type": "OneBitAdam", …}}}}')
    return Path(text)


def file_to_write(text: str) -> Path:
    """A file that is there or can be made, so that no result is lost when it comes to writing it."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise ArgumentTypeError(f"{text!r} is not allowed; allowed is a file in a folder that exists")
    file = path.resolve()  # a link stays, also one to nothing
    made = not file.exists()
    try:
        if made or file.is_file():  # what waits for a reader is not opened on trial
            file.open("a").close()  # rights alone do not tell: a file system may take no files at all
    except OSError as error:
        reason = error.strerror or error
        raise ArgumentTypeError(f"{text!r} cannot be written ({reason}); allowed is a file that can be") from error
    if made:
        file.unlink()
    return path


def folder_to_write(text: str) -> Path:
    """A folder that is there or can be made, and is made."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ArgumentTypeError(
            f"{text!r} cannot be made ({reason}); allowed is a folder that can be written"
        ) from error
    return Path(text)
