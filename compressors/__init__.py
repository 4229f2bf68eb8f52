"""The core: compressors, memories, policies, spec strings and the wire format. Needs torch and numpy only."""

from __future__ import annotations

from .base import Compressed, Compressor, Context, State, TensorMeta
from .dense import BF16, FP16, NoCompression
from .errors import (
    ConfigError,
    GradwireError,
    MismatchError,
    MissingDependencyError,
    PayloadError,
    PeerError,
    TransportError,
    TransportTimeout,
    UnsupportedError,
    UsageError,
)
from .memory import ErrorFeedback
from .onebit import OneBit
from .policy import Choice, SizePolicy, choose, with_defaults, without_memory
from .quantizers import FP8, Int4, Int8, TwoBit
from .randomk import RandomK
from .spec import format_spec, parse_spec
from .topk import TopK

__all__ = [
    "BF16",
    "Choice",
    "Compressed",
    "Compressor",
    "ConfigError",
    "Context",
    "ErrorFeedback",
    "FP16",
    "FP8",
    "GradwireError",
    "Int4",
    "Int8",
    "MismatchError",
    "MissingDependencyError",
    "NoCompression",
    "OneBit",
    "PayloadError",
    "PeerError",
    "RandomK",
    "SizePolicy",
    "State",
    "TensorMeta",
    "TopK",
    "TransportError",
    "TransportTimeout",
    "TwoBit",
    "UnsupportedError",
    "UsageError",
    "choose",
    "format_spec",
    "parse_spec",
    "with_defaults",
    "without_memory",
]
