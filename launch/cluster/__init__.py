"""`gradwire cluster`: emulated hosts with slow links between them, on this machine."""

from __future__ import annotations

from .command import add_arguments, run

__all__ = ["add_arguments", "run"]
