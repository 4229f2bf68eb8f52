"""The largest elements, with values that are cast, or written in blocks."""

from __future__ import annotations

import torch

from ..feed import Feed
from ..layout import Coding
from ..reference.coded import Parts
from .dense import cast_decode_add, cast_encode
from .levels import levels_decode_add, levels_encode
from .sparse import sparse_decode_add
from .top_k import top_k_encode
from .two_bit import two_bit_decode_add, two_bit_encode

__all__ = ["coded_decode_add", "coded_encode"]

_parts = Parts(
    top_k_encode,
    sparse_decode_add,
    cast_encode,
    cast_decode_add,
    levels_encode,
    levels_decode_add,
    two_bit_encode,
    two_bit_decode_add,
)


def coded_encode(feed: Feed, k: int, payload: torch.Tensor, coding: Coding, exact: bool = True) -> torch.Tensor:
    """As the reference."""
    return _parts.encode(feed, k, payload, coding, exact)


def coded_decode_add(
    payload: torch.Tensor, k: int, coding: Coding, out: torch.Tensor, weight: float, exact: bool = True
) -> None:
    """As the reference; other payloads do as in `sparse_decode_add`."""
    _parts.decode_add(payload, k, coding, out, weight, exact)
