"""Transports and the reducers that combine ranks over them."""

from __future__ import annotations

from .bucket_reducer import BucketReducer
from .local import LocalTransport, run_ranks
from .merging import merge_states
from .mpi import MpiTransport
from .parts import Part
from .reducer import GradientReducer
from .statistics import BucketStatistics, Statistics, StepStatistics, TensorStatistics
from .torch_dist import TorchTransport
from .transport import Transport, Work

__all__ = [
    "BucketReducer",
    "BucketStatistics",
    "GradientReducer",
    "LocalTransport",
    "MpiTransport",
    "Part",
    "Statistics",
    "StepStatistics",
    "TensorStatistics",
    "TorchTransport",
    "Transport",
    "Work",
    "merge_states",
    "run_ranks",
]
