"""1-bit optimizers and gradient compression for an unmodified DeepSpeed. Importing this package calls `register`."""

from __future__ import annotations

from .backends import CompressedBackend, MpiBackend, NcclBackend
from .compressed_allreduce import compressed_allreduce
from .gradients import Attachment, attach, attachment_of, detach
from .onebit_adam import OneBitAdam, OnebitAdam
from .onebit_lamb import OneBitLamb, OnebitLamb
from .registration import register
from .zero_one_adam import ZeroOneAdam

__all__ = [
    "Attachment",
    "CompressedBackend",
    "MpiBackend",
    "NcclBackend",
    "OneBitAdam",
    "OneBitLamb",
    "OnebitAdam",
    "OnebitLamb",
    "ZeroOneAdam",
    "attach",
    "attachment_of",
    "compressed_allreduce",
    "detach",
    "register",
]

register()
