"""Gradient compression for an unmodified Horovod: `hvd.DistributedOptimizer(opt, compression=TopK(ratio=0.01))`."""

from __future__ import annotations

from .codecs import BF16, FP8, FP16, Int4, Int8, NoCompression, OneBit, RandomK, TopK, TwoBit
from .compression import Compression, Options
from .transport import CollectiveError, HorovodTransport, JoinError

__all__ = [
    "BF16",
    "CollectiveError",
    "Compression",
    "FP16",
    "FP8",
    "HorovodTransport",
    "Int4",
    "Int8",
    "JoinError",
    "NoCompression",
    "OneBit",
    "Options",
    "RandomK",
    "TopK",
    "TwoBit",
]
