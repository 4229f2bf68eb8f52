"""Lines for the person at the terminal."""

from __future__ import annotations

import logging
import sys

__all__ = ["announce"]

logger = logging.getLogger("gradwire")


def announce(line: str) -> None:
    """Log at level INFO; a script that has set up no logging sees the line on stderr instead of not at all."""
    if logger.hasHandlers():
        logger.info(line)
    else:
        print(f"gradwire: {line}", file=sys.stderr, flush=True)
