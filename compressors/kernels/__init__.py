"""The inner loops. Each exists in `reference`; `native` has the same in C++, and `choose` decides."""

from __future__ import annotations

from . import native, reference
from .choose import either, native_is_used, reference_only
from .feed import Feed
from .layout import SCALE_BYTES, blocks_of, indices_of

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
    "native_is_used",
    "put",
    "reference_only",
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

all_finite = either(reference.all_finite, native.all_finite)
cast_decode_add = either(reference.cast_decode_add, native.cast_decode_add)
cast_encode = either(reference.cast_encode, native.cast_encode)
copy = either(reference.copy, native.copy)
draw = either(reference.draw, native.draw)
gather_encode = either(reference.gather_encode, native.gather_encode)
int8_decode_add = either(reference.int8_decode_add, native.int8_decode_add)
int8_encode = either(reference.int8_encode, native.int8_encode)
put = either(reference.put, native.put)
scatter_add = either(reference.scatter_add, native.scatter_add)
sign_decode_add = either(reference.sign_decode_add, native.sign_decode_add)
sign_encode = either(reference.sign_encode, native.sign_encode)
sign_pack = either(reference.sign_pack, native.sign_pack)
sign_unpack_add = either(reference.sign_unpack_add, native.sign_unpack_add)
sparse_decode_add = either(reference.sparse_decode_add, native.sparse_decode_add)
sparse_indices = either(reference.sparse_indices, native.sparse_indices)
top_k_encode = either(reference.top_k_encode, native.top_k_encode)
total = either(reference.total, native.total)
