"""The kernels in plain torch: readable, on any device, and the oracle of every faster form.

The only code besides theirs that touches gradients element by element. *Flat* is a contiguous vector in fp32;
outputs are written in place, so that each signature can be filled by a function on raw pointers.
"""

from __future__ import annotations

from .coded import coded_decode_add, coded_encode
from .dense import all_finite, cast_decode_add, cast_encode, copy, total, zero
from .draw import check_draw, draw, draw_decode_add, draw_encode
from .levels import levels_decode_add, levels_encode
from .sign import sign_decode_add, sign_encode, sign_pack, sign_unpack_add
from .sparse import clear, sparse_decode_add, sparse_indices, sparse_merge, top_k_encode
from .two_bit import two_bit_decode_add, two_bit_encode

__all__ = [
    "all_finite",
    "cast_decode_add",
    "cast_encode",
    "check_draw",
    "clear",
    "coded_decode_add",
    "coded_encode",
    "copy",
    "draw",
    "draw_decode_add",
    "draw_encode",
    "levels_decode_add",
    "levels_encode",
    "sign_decode_add",
    "sign_encode",
    "sign_pack",
    "sign_unpack_add",
    "sparse_decode_add",
    "sparse_indices",
    "sparse_merge",
    "top_k_encode",
    "total",
    "two_bit_decode_add",
    "two_bit_encode",
    "zero",
]
