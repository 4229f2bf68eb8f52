"""Gradient compression for Horovod and DeepSpeed, on their stock releases."""

from __future__ import annotations

from ._version import __version__
from .compressors import (
    BF16,
    FP16,
    Choice,
    Compressed,
    Compressor,
    Context,
    ErrorFeedback,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    SizePolicy,
    State,
    TensorMeta,
    TopK,
    choose,
    with_defaults,
)

__all__ = [
    "BF16",
    "FP16",
    "Choice",
    "Compressed",
    "Compressor",
    "Context",
    "ErrorFeedback",
    "Int8",
    "NoCompression",
    "OneBit",
    "RandomK",
    "SizePolicy",
    "State",
    "TensorMeta",
    "TopK",
    "__version__",
    "choose",
    "with_defaults",
]
