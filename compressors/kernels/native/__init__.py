"""The kernels in C++, on raw pointers: as `reference` describes them, for contiguous tensors on the CPU.

x is fp32, fp16 or bf16. `csrc/` has the sources, `library` loads what was built of them. Results depend neither on
`threads`, whose default is `torch.get_num_threads()`, nor on the processor. A call takes at most 64 KiB of memory per
thread.
"""

from __future__ import annotations

from .coded import coded_decode_add, coded_encode
from .dense import all_finite, cast_decode_add, cast_encode, copy, total, zero
from .draw import draw, draw_decode_add, draw_encode
from .entry import available, isa, why_not
from .levels import levels_decode_add, levels_encode, two_bit_decode_add, two_bit_encode
from .sign import sign_decode_add, sign_encode, sign_pack, sign_unpack_add
from .sparse import clear, sparse_decode_add, sparse_indices, sparse_merge, top_k_encode

__all__ = [
    "all_finite",
    "available",
    "cast_decode_add",
    "cast_encode",
    "clear",
    "coded_decode_add",
    "coded_encode",
    "copy",
    "draw",
    "draw_decode_add",
    "draw_encode",
    "isa",
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
    "why_not",
    "zero",
]
