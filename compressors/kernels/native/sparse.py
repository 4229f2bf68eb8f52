"""Some elements: the largest, and those that other ranks sent."""

from __future__ import annotations

import torch

from ...errors import UsageError
from .. import reference
from ..feed import Feed
from .entry import REFUSED, done, entry, refused, threads_for
from .records import expect, expect_bytes, fields, places

__all__ = ["clear", "sparse_decode_add", "sparse_indices", "sparse_merge", "top_k_encode"]

_clear = entry("clear")
_sparse_decode_add = entry("sparse_decode_add")
_sparse_indices = entry("sparse_indices")
_sparse_merge = entry("sparse_merge")
_top_k_encode = entry("top_k_encode")


def top_k_encode(feed: Feed, k: int, payload: torch.Tensor, exact: bool = True, threads: int | None = None) -> bool:
    what, n = fields(feed)
    width, nbytes = places(n, k, exact)
    expect_bytes(payload, nbytes + 4 * k)
    where = payload.data_ptr()
    return done(_top_k_encode(*what, k, where, where + nbytes, width, exact, threads or threads_for(n)))


def clear(payload: torch.Tensor, k: int, out: torch.Tensor, exact: bool = True) -> None:
    n = out.numel()
    width, nbytes = places(n, k, exact)
    expect(out, n)
    expect_bytes(payload, nbytes)
    if status := _clear(payload.data_ptr(), n, k, width, exact, out.data_ptr()):
        refused(status, reference.sparse_indices, payload, n, k, exact)


def sparse_decode_add(
    payload: torch.Tensor, k: int, out: torch.Tensor, weight: float, exact: bool = True, threads: int | None = None
) -> None:
    n = out.numel()
    width, nbytes = places(n, k, exact)
    expect(out, n)
    expect_bytes(payload, nbytes + 4 * k)
    where = payload.data_ptr()
    to = where + nbytes, out.data_ptr(), weight, threads or threads_for(n)
    if status := _sparse_decode_add(where, n, k, width, exact, *to):
        refused(status, reference.sparse_decode_add, payload, k, out, weight, exact)


def sparse_indices(payload: torch.Tensor, numel: int, k: int, exact: bool = True) -> torch.Tensor:
    width, nbytes = places(numel, k, exact)
    expect_bytes(payload, nbytes)
    indices = torch.empty(k, dtype=torch.int64)
    found = _sparse_indices(payload.data_ptr(), numel, k, width, exact, indices.data_ptr())
    if found == REFUSED:
        refused(found, reference.sparse_indices, payload, numel, k, exact)
    return indices[:found]


def sparse_merge(
    indices: torch.Tensor, values: torch.Tensor, more: torch.Tensor, their_values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    k, many = indices.numel(), more.numel()
    expect(indices, k, torch.int64)
    expect(values, k)
    expect(more, many, torch.int64)
    expect(their_values, many)
    merged, sums = torch.empty(k + many, dtype=torch.int64), torch.empty(k + many)
    mine, theirs = (indices.data_ptr(), values.data_ptr(), k), (more.data_ptr(), their_values.data_ptr(), many)
    size = _sparse_merge(*mine, *theirs, merged.data_ptr(), sums.data_ptr())
    if size == REFUSED:
        raise UsageError("indices do not ascend strictly from 0 on")
    return merged[:size], sums[:size]
