"""The kernels in plain torch: readable, on any device, and the oracle of every faster form.

The only code besides theirs that touches gradients element by element. *Flat* is a contiguous vector in fp32;
outputs are written in place, so that each signature can be filled by a function on raw pointers.
"""

from __future__ import annotations

from .dense import all_finite, cast_decode_add, cast_encode, copy, total
from .draw import draw
from .int8 import int8_decode_add, int8_encode
from .sign import sign_decode_add, sign_encode, sign_pack, sign_unpack_add
from .sparse import gather_encode, put, scatter_add, sparse_decode_add, sparse_indices, top_k_encode

__all__ = [
    "all_finite",
    "cast_decode_add",
    "cast_encode",
    "copy",
    "draw",
    "gather_encode",
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
