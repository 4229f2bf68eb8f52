"""One bit per element."""

from __future__ import annotations

import torch

from .. import reference
from ..feed import Feed
from ..layout import SCALE_BYTES, blocks_of, sign_bytes
from .entry import entry, refused, threads_for
from .records import DTYPES, expect, expect_bytes, fields

__all__ = ["sign_decode_add", "sign_encode", "sign_pack", "sign_unpack_add"]

_sign_decode_add = entry("sign_decode_add")
_sign_encode = entry("sign_encode")
_sign_pack = entry("sign_pack")
_sign_unpack_add = entry("sign_unpack_add")


def sign_encode(feed: Feed, block: int, order: int, payload: torch.Tensor, threads: int | None = None) -> bool:
    what, n = fields(feed)
    expect_bytes(payload, sign_bytes(n, block))
    return not _sign_encode(*what, block, payload.data_ptr(), order, threads or threads_for(n))


def sign_decode_add(
    payload: torch.Tensor,
    block: int,
    out: torch.Tensor,
    weight: float,
    threads: int | None = None,
    *,
    fresh: bool = False,
) -> None:
    n = out.numel()
    expect(out, n)
    expect_bytes(payload, sign_bytes(n, block))
    to = out.data_ptr(), n, weight, threads or threads_for(n), fresh
    if status := _sign_decode_add(payload.data_ptr(), block, *to):
        refused(status, reference.sign_decode_add, payload, block, out, weight)


def sign_pack(x: torch.Tensor, bits: torch.Tensor, threads: int | None = None) -> None:
    n = x.numel()
    expect_bytes(bits, (n + 7) // 8)
    _sign_pack(x.data_ptr(), bits.data_ptr(), n, DTYPES[x.dtype], threads or threads_for(n))


def sign_unpack_add(
    bits: torch.Tensor,
    scales: torch.Tensor,
    block: int,
    out: torch.Tensor,
    weight: float,
    threads: int | None = None,
    *,
    fresh: bool = False,
) -> None:
    n, blocks = out.numel(), blocks_of(out.numel(), block)
    expect(out, n)
    expect(scales, blocks)
    expect_bytes(bits, sign_bytes(n, block) - SCALE_BYTES * blocks)
    where = bits.data_ptr(), scales.data_ptr()
    _sign_unpack_add(*where, block, out.data_ptr(), n, weight, threads or threads_for(n), fresh)
