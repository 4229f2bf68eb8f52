"""The header of a message: once per bucket and rank. docs/wire-format.md describes every byte."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch

from .base import ALIGNMENT
from .errors import PayloadError, UsageError

__all__ = ["Expected", "FAILED", "HEADER_BYTES", "NON_FINITE", "VERSION", "aligned", "read_header", "write_header"]

VERSION = 2
#: flag: this rank's input (with its residual) held NaN or inf
NON_FINITE = 1
#: flag: this rank's codec raised; its payloads mean nothing
FAILED = 2

_MAGIC = b"GW"
_LAYOUT = struct.Struct("<2sBBHHIIQ")
HEADER_BYTES = _LAYOUT.size


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What all messages of a bucket have in common.

    Attributes:
        codec_id: the codec of the compressed tensors, 0 if all are dense; 0 to 255.
        count: number of tensors in the bucket; 0 to 65 535.
        digest: of what the ranks have agreed on; 32 bits.
    """

    codec_id: int
    count: int
    digest: int

    def __post_init__(self) -> None:
        for name, limit in (("codec_id", 0xFF), ("count", 0xFFFF), ("digest", 0xFFFFFFFF)):
            if not 0 <= getattr(self, name) <= limit:
                raise UsageError(f"message header: {name} is {getattr(self, name)}, expected 0 to {limit}")


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to where the next tensor's payload may begin."""
    return nbytes + -nbytes % ALIGNMENT


def write_header(message: torch.Tensor, expected: Expected, *, step: int, flags: int = 0) -> None:
    """Fill the first `HEADER_BYTES` of a message (uint8, 1-D); all that follows is its body."""
    body = message.numel() - HEADER_BYTES
    if body < 0:
        raise UsageError(f"a message has at least {HEADER_BYTES} bytes, got {message.numel()}")
    fields = (VERSION, expected.codec_id, flags, expected.count, expected.digest, step & 0xFFFFFFFF, body)
    header = np.frombuffer(bytearray(_LAYOUT.pack(_MAGIC, *fields)), dtype=np.uint8)
    message[:HEADER_BYTES] = torch.from_numpy(header)


def read_header(message: torch.Tensor, expected: Expected, *, step: int, rank: int) -> int:
    """Check the header of the message that rank `rank` sent, and return its flags.

    Raises:
        PayloadError: the message is truncated, foreign, of another version, plan or step; the text names the
            rank, the field and both values.
    """
    if message.numel() < HEADER_BYTES:
        raise PayloadError(f"message of rank {rank}: {message.numel()} bytes, a header has {HEADER_BYTES}")
    magic, version, codec_id, flags, count, digest, sent_step, body = _LAYOUT.unpack(_first_bytes(message))
    checks = (
        ("magic", magic, _MAGIC),
        ("version", version, VERSION),
        ("unknown flags", flags & ~(NON_FINITE | FAILED), 0),
        ("codec id", codec_id, expected.codec_id),
        ("tensor count", count, expected.count),
        ("digest", digest, expected.digest),
        ("step", sent_step, step & 0xFFFFFFFF),
        ("body length", body, message.numel() - HEADER_BYTES),
    )
    for field, found, wanted in checks:
        if found != wanted:
            raise PayloadError(f"message of rank {rank}: {field} is {found!r}, expected {wanted!r}")
    return flags


def _first_bytes(message: torch.Tensor) -> bytes:
    return message[:HEADER_BYTES].cpu().numpy().tobytes()
