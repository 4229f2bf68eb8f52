"""Gradient compression for an unmodified Horovod: `hvd.DistributedOptimizer(opt, compression=TopK(ratio=0.01))`."""

from __future__ import annotations

from .codecs import BF16, FP16, Int8, NoCompression, OneBit, RandomK, TopK
from .compression import Compression, Options
from .transport import CollectiveError, HorovodTransport, JoinError

__all__ = [
    "BF16",
    "CollectiveError",
    "Compression",
    "FP16",
    "HorovodTransport",
    "Int8",
    "JoinError",
    "NoCompression",
    "OneBit",
    "Options",
    "RandomK",
    "TopK",
]
