"""Transports and the reducers that combine ranks over them."""

from __future__ import annotations

from .local import LocalTransport, run_ranks
from .mpi import MpiTransport
from .reducer import GradientReducer
from .statistics import BucketStatistics, Statistics, StepStatistics, TensorStatistics
from .torch_dist import TorchTransport
from .transport import Transport, Work

__all__ = [
    "BucketStatistics",
    "GradientReducer",
    "LocalTransport",
    "MpiTransport",
    "Statistics",
    "StepStatistics",
    "TensorStatistics",
    "TorchTransport",
    "Transport",
    "Work",
    "run_ranks",
]
