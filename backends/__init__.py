"""Transports and the reducers that combine ranks over them."""

from __future__ import annotations

from .local import LocalTransport, run_ranks
from .transport import Transport, Work

__all__ = ["LocalTransport", "Transport", "Work", "run_ranks"]
