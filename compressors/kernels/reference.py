"""The kernels in plain torch: readable, on any device, and the oracle of every faster form.

The only module that touches gradients element by element. Vectors are contiguous; gradients, residuals and
results are fp32. Outputs are written in place, so that each signature can be filled by a function on raw
pointers. Work goes in pieces of `PIECE` elements: temporaries stay small, and in the cache. Unless said
otherwise the inputs are finite and not empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from ..errors import PayloadError

__all__ = [
    "CHUNK",
    "add",
    "all_finite",
    "block_peaks",
    "block_sizes",
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

#: elements that one 16-bit offset can address
CHUNK = 1 << 16
#: elements that are worked on at a time
PIECE = 1 << 18
#: how many magnitudes the first guess at the top-k threshold looks at
SAMPLES = 1 << 16

_FLT_MIN = torch.finfo(torch.float32).tiny
#: so that 127 times a scale stays finite
_LARGEST_SCALE = float(np.nextafter(np.float32(torch.finfo(torch.float32).max / 127), np.float32(0)))
#: times a word of 0/1 bytes: the highest byte of the product has their bits, the first byte's in front
_PACK = int.from_bytes(bytes.fromhex("8040201008040201"), "big", signed=True)


def all_finite(x: torch.Tensor) -> bool:
    """False if `x` (any floating dtype, not empty) holds NaN or inf. One pass."""
    low, high = torch.aminmax(x)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def add(x: torch.Tensor, residual: torch.Tensor, decay: float, out: torch.Tensor) -> None:
    """`out = x + decay * residual` in fp32; `x` has any floating dtype, `out` may be `x`."""
    if x.dtype == torch.float32:
        torch.add(x, residual, alpha=decay, out=out)
    else:
        out.copy_(x).add_(residual, alpha=decay)


# Sparse: indices are int64, ascending and distinct.


def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k largest magnitudes; among equals the lowest index wins. 1 <= k <= numel."""
    threshold = _guess(x, k)
    indices, magnitudes = _survivors(x, threshold)
    if indices.numel() < k:
        indices, magnitudes = _survivors(x, 0.0)
    return indices[_largest(magnitudes, k)]


def gather(x: torch.Tensor, indices: torch.Tensor, out: torch.Tensor) -> None:
    """`out = x[indices]`."""
    torch.index_select(x, 0, indices, out=out)


def scatter_add(values: torch.Tensor, indices: torch.Tensor, out: torch.Tensor, weight: float) -> None:
    """`out[indices] += weight * values`."""
    out.index_add_(0, indices, values, alpha=weight)


def split_indices(indices: torch.Tensor, counts: torch.Tensor, offsets: torch.Tensor) -> None:
    """Write how many indices fall into each chunk (int32), and each one's offset (16 bits, held as int16)."""
    counts.copy_(torch.bincount(indices >> 16, minlength=counts.numel()))
    offsets.copy_((indices & 0xFFFF).to(torch.int16))


def join_indices(counts: torch.Tensor, offsets: torch.Tensor, numel: int) -> torch.Tensor:
    """The inverse of `split_indices`, for bytes that nobody has checked.

    Raises:
        PayloadError: the counts do not add up, or the indices do not ascend within [0, numel).
    """
    wide = counts.long()
    if bool((wide < 0).any()) or int(wide.sum()) != offsets.numel():
        raise PayloadError(f"sparse payload: chunk counts add up to {int(wide.sum())}, expected {offsets.numel()}")
    bases = torch.arange(0, CHUNK * counts.numel(), CHUNK, device=counts.device)
    indices = torch.repeat_interleave(bases, wide).add_(offsets.long() & 0xFFFF)
    if bool((indices[1:] <= indices[:-1]).any()) or int(indices[-1]) >= numel:
        raise PayloadError(f"sparse payload: indices do not ascend strictly within [0, {numel})")
    return indices


def _guess(x: torch.Tensor, k: int) -> float:
    """A magnitude that somewhat more than k elements very likely reach; 0 if guessing would not pay."""
    n = x.numel()
    if n <= SAMPLES or 2 * k >= n:
        return 0.0
    sample = x[:: n // SAMPLES].abs()
    expected = k * sample.numel() / n
    rank = int(expected + 4 * expected**0.5 + 8)
    return float(sample.topk(rank, sorted=False).values.min()) if rank < sample.numel() else 0.0


def _survivors(x: torch.Tensor, threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and magnitudes of the elements that reach the threshold."""
    if threshold == 0.0:
        return torch.arange(x.numel(), device=x.device), x.abs()
    indices = torch.cat([_where(x[span].abs() >= threshold).add_(span.start) for span in _spans(x.numel())])
    return indices, x[indices].abs_()


def _largest(magnitudes: torch.Tensor, k: int) -> torch.Tensor:
    """Positions of the k largest magnitudes, ascending; among equals the first ones."""
    smallest = magnitudes.topk(k, sorted=False).values.min()
    keep = magnitudes > smallest
    ties = _where(magnitudes == smallest)
    keep[ties[: k - int(keep.sum())]] = True
    return _where(keep)


def _where(mask: torch.Tensor) -> torch.Tensor:
    """Positions of the true entries; numpy is several times as fast as torch here."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.is_cpu else mask.nonzero().view(-1)


# Scales.


def check_scales(scales: torch.Tensor) -> None:
    """Refuse scales that no encoder writes.

    Raises:
        PayloadError: a scale is negative, infinite or NaN.
    """
    low, high = torch.aminmax(scales)
    if not bool((low >= 0) & torch.isfinite(high)):
        raise PayloadError(f"block scales reach from {float(low)} to {float(high)}, expected finite and not negative")


# One bit per element, one scale per block. The first element is the highest bit of the first byte.


def sign_scales(x: torch.Tensor, block: int, order: int, scales: torch.Tensor) -> None:
    """Mean magnitude (`order` 1) or root mean square (2) of each block, 0 where that is not above FLT_MIN."""
    sums = torch.zeros(scales.numel(), dtype=torch.float64, device=x.device)
    for part in _blocks(x.numel(), block):
        norm = torch.linalg.vector_norm(x[part.span].view(part.rows, -1), order, dim=1, dtype=torch.float64)
        sums[part.blocks] += norm**order
    mean = (sums / block_sizes(x.numel(), block, device=x.device)) ** (1 / order)
    scales.copy_(_guarded(mean.to(torch.float32)))


def sign_pack(x: torch.Tensor, bits: torch.Tensor) -> None:
    """One bit per element, 1 where x >= 0; the unused bits of the last byte are 0."""
    for span in _spans(x.numel()):
        packed = _pack(x[span] >= 0)
        bits[span.start // 8 : span.start // 8 + packed.numel()] = packed


def sign_unpack_add(bits: torch.Tensor, scales: torch.Tensor, block: int, out: torch.Tensor, weight: float) -> None:
    """`out += weight * scale` where the bit is 1, `-weight * scale` where it is 0."""
    table = _signs(out.device)
    weighted = scales * weight
    for part in _blocks(out.numel(), block):
        octets = bits[part.span.start // 8 : (part.span.stop + 7) // 8]
        signs = table.index_select(0, octets.int()).view(-1)[: part.span.stop - part.span.start]
        values = signs.view(part.rows, -1).mul_(weighted[part.blocks, None])
        out[part.span].add_(values.view(-1))


def _pack(mask: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.packbits(mask.numpy())) if mask.is_cpu else _pack_words(mask)


def _pack_words(mask: torch.Tensor) -> torch.Tensor:
    """As `numpy.packbits`, on any device: eight 0/1 bytes are one word, and a product gathers its bits."""
    padded = torch.nn.functional.pad(mask.view(torch.uint8), (0, -mask.numel() % 8))
    return ((padded.view(torch.int64) * _PACK >> 56) & 0xFF).to(torch.uint8)


@cache
def _signs(device: torch.device) -> torch.Tensor:
    """A row of eight +1 or -1 for each byte."""
    octets = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    return torch.from_numpy(octets).to(device, torch.float32).mul_(2).sub_(1)


# Eight bits per element, one scale per block.


def block_peaks(x: torch.Tensor, block: int, scales: torch.Tensor) -> None:
    """Largest magnitude / 127 of each block, 0 where that is not above FLT_MIN."""
    scales.zero_()
    for part in _blocks(x.numel(), block):
        peak = x[part.span].view(part.rows, -1).abs().amax(dim=1)
        scales[part.blocks] = torch.maximum(scales[part.blocks], peak)
    scales.copy_(_guarded((scales / 127).clamp_(max=_LARGEST_SCALE)))


def quantize(x: torch.Tensor, scales: torch.Tensor, block: int, out: torch.Tensor, seed: int | None) -> None:
    """`out = round(x / scale)` as int8 within ±127: to nearest even, or with a `seed` at random and unbiased."""
    safe = torch.where(scales > 0, scales, 1.0)  # below a denormal scale, |x| / 1 rounds to 0
    generator = None if seed is None else torch.Generator(x.device).manual_seed(seed)
    for part in _blocks(x.numel(), block):
        levels = x[part.span].view(part.rows, -1) / safe[part.blocks, None]
        if generator is None:
            levels.round_()
        else:
            levels.add_(torch.rand(levels.shape, generator=generator, device=x.device)).floor_()
        out[part.span] = levels.clamp_(-127, 127).view(-1)


def dequantize_add(levels: torch.Tensor, scales: torch.Tensor, block: int, out: torch.Tensor, weight: float) -> None:
    """`out += weight * scale * level`."""
    for part in _blocks(out.numel(), block):
        values = levels[part.span].view(part.rows, -1) * scales[part.blocks, None]
        out[part.span].add_(values.view(-1), alpha=weight)


# Casts to 16 bits.


def cast(x: torch.Tensor, divisor: float, out: torch.Tensor) -> torch.Tensor:
    """`out = x / divisor` in out's dtype; magnitudes beyond its range saturate. Returns their number (int64, 0-dim)."""
    limit = torch.finfo(out.dtype).max
    low, high = torch.aminmax(x)
    fits = bool((low >= -limit) & (high <= limit))
    saturated = torch.zeros((), dtype=torch.int64, device=x.device)
    for span in _spans(x.numel()):
        scaled = x[span] / divisor
        if not fits:
            saturated += (x[span].abs() > limit).sum()
            scaled.clamp_(-limit / divisor, limit / divisor)
        out[span] = scaled
    return saturated


def cast_add(values: torch.Tensor, out: torch.Tensor, weight: float) -> None:
    """`out += weight * values`, whatever floating dtype the values have; the product is formed in fp32."""
    for span in _spans(out.numel()):
        out[span].add_(values[span].to(torch.float32), alpha=weight)


# Shared.


def block_sizes(numel: int, block: int, device: torch.device | None = None) -> torch.Tensor:
    """How many elements each block has (int64): all `block`, but the last may have fewer."""
    starts = torch.arange(0, numel, block, device=device)
    return (numel - starts).clamp_(max=block)


class _Part(NamedTuple):
    """A run of whole blocks, or a piece of one long block."""

    span: slice
    blocks: slice
    rows: int


def _blocks(numel: int, block: int) -> Iterator[_Part]:
    """Cut into parts of at most `PIECE` elements that start at multiples of 8, if `block` is one or covers all."""
    whole = numel // block * block
    stride = max(1, PIECE // block) * block
    edges = [*range(0, whole, stride), whole, *([numel] if whole < numel else [])]
    for start, stop in pairwise(edges):
        for inner in _spans(stop - start):
            first, last = start + inner.start, start + inner.stop
            rows = max(1, (last - first) // block)
            yield _Part(slice(first, last), slice(first // block, first // block + rows), rows)


def _spans(numel: int) -> Iterator[slice]:
    return (slice(start, min(start + PIECE, numel)) for start in range(0, numel, PIECE))


def _guarded(scales: torch.Tensor) -> torch.Tensor:
    """Denormal scales become 0: their reciprocal would be inf."""
    return torch.where(scales > _FLT_MIN, scales, 0.0)
