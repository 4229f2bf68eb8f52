"""Gradient compression for an unmodified DeepSpeed. Importing this package registers it: see `register`."""

from __future__ import annotations

from .backends import CompressedBackend, MpiBackend, NcclBackend
from .compressed_allreduce import compressed_allreduce
from .registration import register

__all__ = [
    "CompressedBackend",
    "MpiBackend",
    "NcclBackend",
    "compressed_allreduce",
    "register",
]

register()
