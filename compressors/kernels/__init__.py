"""The inner loops. Each exists in `reference`; `native` has the same in C++, and `choose` decides."""

from __future__ import annotations

from . import native, reference
from .choose import either, form_on, reference_only
from .feed import Feed, Verdict
from .layout import E4M3, E5M2, INT4, INT8, Coding, Grid, blocks_of, indices_of, levels_bytes, sign_bytes, two_bit_bytes

__all__ = [
    "Coding",
    "E4M3",
    "E5M2",
    "Feed",
    "Grid",
    "INT4",
    "INT8",
    "Verdict",
    "all_finite",
    "blocks_of",
    "cast_decode_add",
    "cast_encode",
    "clear",
    "coded_decode_add",
    "coded_encode",
    "copy",
    "draw",
    "draw_decode_add",
    "draw_encode",
    "form_on",
    "indices_of",
    "levels_bytes",
    "levels_decode_add",
    "levels_encode",
    "reference_only",
    "sign_bytes",
    "sign_decode_add",
    "sign_encode",
    "sign_pack",
    "sign_unpack_add",
    "sparse_decode_add",
    "sparse_indices",
    "sparse_merge",
    "top_k_encode",
    "total",
    "two_bit_bytes",
    "two_bit_decode_add",
    "two_bit_encode",
    "zero",
]

all_finite = either(reference.all_finite, native.all_finite)
cast_decode_add = either(reference.cast_decode_add, native.cast_decode_add)
cast_encode = either(reference.cast_encode, native.cast_encode)
clear = either(reference.clear, native.clear)
coded_decode_add = either(reference.coded_decode_add, native.coded_decode_add)
coded_encode = either(reference.coded_encode, native.coded_encode)
copy = either(reference.copy, native.copy)
draw = either(reference.draw, native.draw)
draw_decode_add = either(reference.draw_decode_add, native.draw_decode_add)
draw_encode = either(reference.draw_encode, native.draw_encode)
levels_decode_add = either(reference.levels_decode_add, native.levels_decode_add)
levels_encode = either(reference.levels_encode, native.levels_encode)
sign_decode_add = either(reference.sign_decode_add, native.sign_decode_add)
sign_encode = either(reference.sign_encode, native.sign_encode)
sign_pack = either(reference.sign_pack, native.sign_pack)
sign_unpack_add = either(reference.sign_unpack_add, native.sign_unpack_add)
sparse_decode_add = either(reference.sparse_decode_add, native.sparse_decode_add)
sparse_indices = either(reference.sparse_indices, native.sparse_indices)
sparse_merge = either(reference.sparse_merge, native.sparse_merge)
top_k_encode = either(reference.top_k_encode, native.top_k_encode)
total = either(reference.total, native.total)
two_bit_decode_add = either(reference.two_bit_decode_add, native.two_bit_decode_add)
two_bit_encode = either(reference.two_bit_encode, native.two_bit_encode)
zero = either(reference.zero, native.zero)
