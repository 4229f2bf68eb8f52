"""The kernels for GPUs, in Triton: as `reference` describes them, for contiguous tensors on one device.

They differ in what nobody waits for. Encoders answer with 0-dim tensors on the device (bool, where nothing else is
said), and decoders, which cannot refuse a payload then, make the first element of their output NaN: no byte of it leads
out of bounds. Nothing here waits for the device, grids follow from shapes alone, and launches go to torch's current
stream. Results do not depend on the order in which programs run. Memory is taken for a thousandth of the elements, and
some 100 KiB.

Left to `reference`: `sparse_indices` and `sparse_merge`, whose results have a size that depends on the data.
"""

from __future__ import annotations

from .coded import coded_decode_add, coded_encode
from .dense import all_finite, cast_decode_add, cast_encode, copy, total
from .draw import draw, draw_decode_add, draw_encode
from .levels import levels_decode_add, levels_encode
from .sign import sign_decode_add, sign_encode, sign_pack, sign_unpack_add
from .sparse import clear, sparse_decode_add
from .top_k import top_k_encode
from .two_bit import two_bit_decode_add, two_bit_encode

__all__ = [
    "all_finite",
    "cast_decode_add",
    "cast_encode",
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
    "top_k_encode",
    "total",
    "two_bit_decode_add",
    "two_bit_encode",
]
