"""What travels together.

Words: a *slot* is one tensor's place in a bucket; a *bucket* is what one message carries; its *lane* is how the ranks
combine it (the kind of exchange, and the dtype on the wire).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..compressors import Compressor, TensorMeta
from .statistics import Prediction

__all__ = ["Bucket", "Lane", "MAX_SLOTS", "Slot"]

#: a message header counts its tensors in 16 bits
MAX_SLOTS = 0xFFFF


class Lane(NamedTuple):
    """How a bucket travels."""

    kind: str
    dtype: torch.dtype = torch.uint8


@dataclass(frozen=True)
class Slot:
    """One tensor in a bucket; `reason` says why it travels dense, or is None."""

    meta: TensorMeta
    codec: Compressor
    reason: str | None


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel in one message.

    Attributes:
        name: prefixes the names of its collectives.
        lane: how it travels.
        slots: the tensors.
        predictions: what the exchanges that came into question would cost, where there was a choice.
    """

    name: str
    lane: Lane
    slots: tuple[Slot, ...]
    predictions: tuple[Prediction, ...] = ()
