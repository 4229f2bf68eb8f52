"""A file that holds the state of one rank: whole, or refused.

Layout: a magic line, the SHA-256 of what follows (32 bytes), then what `torch.save` wrote.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from ..compressors.errors import PayloadError

__all__ = ["read_state", "write_state"]

MAGIC = b"gradwire state 1\n"
_DIGEST_BYTES = 32


def write_state(path: Path, state: Any) -> None:
    """Write plain values and tensors; after a crash there is the old file or the new one, nothing between.

    Raises:
        OSError: the file cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(MAGIC)
        file.write(hashlib.sha256(payload).digest())
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    _sync_folder(path.parent)


def read_state(path: Path, device: torch.device | str = "cpu") -> Any:
    """What `write_state` wrote, with tensors on `device`. Nothing in the file is executed.

    Raises:
        OSError: the file cannot be read.
        PayloadError: it was cut short or changed, or is another kind of file.
    """
    content = memoryview(path.read_bytes())
    payload = content[len(MAGIC) + _DIGEST_BYTES :]
    if content[: len(MAGIC)] != MAGIC:
        raise PayloadError(f"{path} is no state file of gradwire, or of another version: it begins otherwise")
    if hashlib.sha256(payload).digest() != content[len(MAGIC) : len(MAGIC) + _DIGEST_BYTES]:
        raise PayloadError(f"{path} was cut short or changed ({len(content)} bytes): take another checkpoint")
    return torch.load(io.BytesIO(payload), map_location=device, weights_only=True)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
