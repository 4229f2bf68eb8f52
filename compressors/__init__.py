"""The core: compressors, memories, policies, spec strings and the wire format. Needs torch and numpy only."""

from __future__ import annotations

from .base import Compressed, Compressor, Context, State, TensorMeta
from .dense import BF16, FP16, NoCompression
from .int8 import Int8
from .memory import ErrorFeedback
from .onebit import OneBit
from .policy import Choice, SizePolicy, choose, with_defaults
from .randomk import RandomK
from .topk import TopK

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
    "choose",
    "with_defaults",
]
