"""Reducers that go on in a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from gradwire import Compressor
from gradwire.backends import GradientReducer, Transport

from .reducing import Shapes, everything, metas

__all__ = ["FOUR", "HOSTS", "SECONDS", "eventually", "reducer_of", "threads"]

#: tensors of a bucket each
FOUR: Shapes = {"a": (40, 40), "b": (40, 40), "c": (40, 40), "d": (40, 40)}
HOSTS = (0, 0, 1, 1)
SECONDS = 10.0


def reducer_of(
    transport: Transport, codec: Compressor, shapes: Shapes = FOUR, *, overlap: bool = True, **options: Any
) -> GradientReducer:
    options = {"bucket_bytes": 6000, "timeout": SECONDS, "name": f"r{overlap}", **options}
    reducer = GradientReducer(everything(codec), transport, overlap=overlap, **options)
    reducer.register(metas(shapes))
    return reducer


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(1e-3)
    return condition()


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"gradwire {name}"]
