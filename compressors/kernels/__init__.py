"""The inner loops. Each exists in `reference`; faster forms have the same signatures and are chosen here."""

from __future__ import annotations

from .reference import (
    CHUNK,
    add,
    all_finite,
    block_peaks,
    cast,
    cast_add,
    check_scales,
    dequantize_add,
    gather,
    join_indices,
    quantize,
    scatter_add,
    sign_pack,
    sign_scales,
    sign_unpack_add,
    split_indices,
    top_k,
)

__all__ = [
    "CHUNK",
    "add",
    "all_finite",
    "block_peaks",
    "cast",
    "cast_add",
    "check_scales",
    "dequantize_add",
    "gather",
    "join_indices",
    "quantize",
    "scatter_add",
    "sign_pack",
    "sign_scales",
    "sign_unpack_add",
    "split_indices",
    "top_k",
]
