"""`gradwire bench step`: whole training steps on emulated hosts, of every system and compressor, side by side."""

from __future__ import annotations

from .options import add_arguments

__all__ = ["add_arguments"]
