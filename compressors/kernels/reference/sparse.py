"""Some elements: which, where they are, and how their places are written. Indices are int64, ascending and distinct."""

from __future__ import annotations

import torch

from ...errors import PayloadError, UsageError
from ..feed import Feed
from ..layout import Indices, indices_of
from .dense import total
from .select import sampled, top_k

__all__ = ["clear", "sparse_decode_add", "sparse_indices", "sparse_merge", "top_k_encode"]

_DTYPES = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


def top_k_encode(feed: Feed, k: int, payload: torch.Tensor, exact: bool = True) -> bool:
    """The places of the k largest magnitudes, and their values; among equals the lowest index wins.

    Args:
        feed: what is encoded; 1 <= k <= its length. `feed.rest` has zeros at those places.
        k: how many.
        payload: bytes: the places, then the values as fp32.
        exact: False: those that reach a magnitude which samples tell (`select.sampled`), k at most. Offsets and values
            that are left over are 0.

    Returns:
        False if the feed's sum is not finite.
    """
    flat, finite = total(feed)
    if not finite:
        return False
    form = indices_of(flat.numel(), k, exact)
    indices = top_k(flat, k) if exact else sampled(flat, k)
    _write(indices, form, payload[: form.nbytes])
    sent = payload[form.nbytes :].view(torch.float32)
    sent[: indices.numel()] = flat[indices]
    sent[indices.numel() :] = 0
    if feed.rest is not None:
        feed.rest[indices] = 0
    return True


def clear(payload: torch.Tensor, k: int, out: torch.Tensor, exact: bool = True) -> None:
    """Zero the elements of `out` whose places a payload of `top_k_encode` has.

    Raises:
        PayloadError: as `sparse_indices`; nothing was zeroed.
    """
    out[sparse_indices(payload, out.numel(), k, exact)] = 0


def sparse_decode_add(payload: torch.Tensor, k: int, out: torch.Tensor, weight: float, exact: bool = True) -> None:
    """`out += weight * value` at the places that the payload has, with fp32 values behind them.

    Raises:
        PayloadError: as `sparse_indices`; nothing was added.
    """
    values = payload[indices_of(out.numel(), k, exact).nbytes :].view(torch.float32)
    indices = sparse_indices(payload, out.numel(), k, exact)
    out.index_add_(0, indices, values[: indices.numel()] * weight)


def sparse_indices(payload: torch.Tensor, numel: int, k: int, exact: bool = True) -> torch.Tensor:
    """The places that a payload has, for bytes that nobody has checked.

    Raises:
        PayloadError: counts do not add up to k (not `exact`: to k at most), or the indices do not ascend within their
            chunks and [0, numel).
    """
    form, found = indices_of(numel, k, exact), k
    if form.chunks:
        counts, _ = _sections(payload, form, k)
        found = int(_unsigned(counts, form).sum())
        if found > k or (exact and found < k):
            raise PayloadError(f"sparse payload: chunk counts add up to {found}, expected {k}")
    indices = _read(payload, form, k)[:found]
    if form.chunks and bool((_sections(payload, form, k)[1][:found] == (-1 if form.width == 16 else 255)).any()):
        raise PayloadError(f"sparse payload: an offset is {form.chunk}, expected less")
    if found and (bool((indices[1:] <= indices[:-1]).any()) or int(indices[-1]) >= numel):
        raise PayloadError(f"sparse payload: indices do not ascend strictly within [0, {numel})")
    return indices


def sparse_merge(
    indices: torch.Tensor, values: torch.Tensor, more: torch.Tensor, their_values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of two sparse vectors: places that either has, and values (flat), added where both have one.

    Raises:
        UsageError: indices do not ascend strictly from 0 on.
    """
    for places in (indices, more):
        if bool((places[1:] <= places[:-1]).any()) or bool((places[:1] < 0).any()):
            raise UsageError("indices do not ascend strictly from 0 on")
    merged, where = torch.unique(torch.cat((indices, more)), return_inverse=True)
    sums = torch.zeros(merged.numel(), device=values.device)
    return merged, sums.index_add_(0, where, torch.cat((values, their_values)))


def _write(indices: torch.Tensor, form: Indices, section: torch.Tensor) -> None:
    section.zero_()
    if not form.chunks:
        section.view(torch.int32).copy_(_wrapped(indices, form))
        return
    counts, offsets = _sections(section, form, indices.numel())
    counts.copy_(_wrapped(torch.bincount(indices // form.chunk, minlength=form.chunks), form))
    offsets.copy_(_wrapped(indices % form.chunk, form))


def _read(payload: torch.Tensor, form: Indices, k: int) -> torch.Tensor:
    if not form.chunks:
        return _unsigned(payload[: form.nbytes].view(torch.int32), form)
    counts, offsets = _sections(payload, form, k)
    starts = torch.arange(0, form.chunk * form.chunks, form.chunk, device=payload.device)
    found = torch.repeat_interleave(starts, _unsigned(counts, form))
    return found.add_(_unsigned(offsets, form)[: found.numel()])


def _sections(payload: torch.Tensor, form: Indices, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = _DTYPES[form.width]
    end = form.chunks * dtype.itemsize
    return payload[:end].view(dtype), payload[end : end + k * dtype.itemsize].view(dtype)


def _unsigned(values: torch.Tensor, form: Indices) -> torch.Tensor:
    """Torch can do little with unsigned numbers: they are held as signed ones of their width."""
    return values.long() & ((1 << form.width) - 1)


def _wrapped(values: torch.Tensor, form: Indices) -> torch.Tensor:
    return values.to(_DTYPES[form.width])  # cuts off what is above
