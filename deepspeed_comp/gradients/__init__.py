"""Compression of gradients at ZeRO 0 to 3: what DeepSpeed's own reductions send, and nothing else."""

from __future__ import annotations

from .attach import attach, attachment_of, detach
from .attachment import Attachment
from .comparing import comparing_models

__all__ = ["Attachment", "attach", "attachment_of", "comparing_models", "detach"]
