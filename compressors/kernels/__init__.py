"""The inner loops. Each exists in `reference`; faster forms have the same signatures and are chosen here."""

from __future__ import annotations

from .feed import Feed
from .layout import SCALE_BYTES, blocks_of, indices_of
from .reference import (
    all_finite,
    cast_decode_add,
    cast_encode,
    copy,
    draw,
    gather_encode,
    int8_decode_add,
    int8_encode,
    put,
    scatter_add,
    sign_decode_add,
    sign_encode,
    sign_pack,
    sign_unpack_add,
    sparse_decode_add,
    sparse_indices,
    top_k_encode,
    total,
)

__all__ = [
    "Feed",
    "SCALE_BYTES",
    "all_finite",
    "blocks_of",
    "cast_decode_add",
    "cast_encode",
    "copy",
    "draw",
    "gather_encode",
    "indices_of",
    "int8_decode_add",
    "int8_encode",
    "put",
    "scatter_add",
    "sign_decode_add",
    "sign_encode",
    "sign_pack",
    "sign_unpack_add",
    "sparse_decode_add",
    "sparse_indices",
    "top_k_encode",
    "total",
]
