"""The `gradwire` command, set-up and test scripts."""

from __future__ import annotations

__all__: list[str] = []
