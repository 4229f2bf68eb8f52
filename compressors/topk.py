"""Exact top-k: the largest entries and where they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from . import kernels
from .base import Compressor, Context, State, TensorMeta
from .dense import Cast, NoCompression
from .errors import ConfigError
from .int8 import Int8
from .options import check_flag, check_fraction, count

__all__ = ["TopK"]

_COUNT_BYTES = 4
_OFFSET_BYTES = 2
_RAW = NoCompression()


class _Sections(NamedTuple):
    counts: torch.Tensor
    offsets: torch.Tensor
    padding: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class TopK(Compressor):
    """The `ratio * numel` entries of largest magnitude, rounded up and at least one (Stich 2018, 1809.07599).

    Exact, and equal inputs give equal choices: among equal magnitudes the lowest index wins. The ratio counts as
    the decimal number that it prints as: 0.1 of 10 entries is 1. An entry costs 2 bytes of offset and its value.

    Attributes:
        ratio: share of the entries that is sent, in (0, 1].
        values: how the values are sent: None for fp32, or `FP16()`, `BF16()` or `Int8()`.
        error_feedback: wrap in `ErrorFeedback` by default. Without it, small entries are never sent.
    """

    ratio: float = 0.01
    values: Cast | Int8 | None = None
    error_feedback: bool = True

    def __post_init__(self) -> None:
        check_fraction("ratio", self.ratio)
        check_flag("error_feedback", self.error_feedback)
        if self.values is not None and not isinstance(self.values, Cast | Int8):
            raise ConfigError(f"values is {self.values!r}, expected None (fp32), FP16(), BF16() or Int8()")

    @property
    def sparse(self) -> bool:
        return True

    @property
    def codec_id(self) -> int:
        return 4

    def entries(self, meta: TensorMeta) -> int:
        return count(self.ratio, meta.numel)

    def nbytes(self, meta: TensorMeta) -> int:
        if meta.numel == 0:
            return 0
        return self._values_at(meta) + self._inner.nbytes(self._inner_meta(meta))

    def _encode(self, flat: torch.Tensor, state: State, ctx: Context, payload: torch.Tensor) -> State:
        sections = self._sections(payload, ctx.meta)
        sections.padding.zero_()
        indices = kernels.top_k(flat, self.entries(ctx.meta))
        kernels.split_indices(indices, sections.counts, sections.offsets)
        values = torch.empty(indices.numel(), device=flat.device)
        kernels.gather(flat, indices, values)
        return self._inner._encode(values, state, self._inner_context(ctx), sections.values)

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        sections = self._sections(payload, ctx.meta)
        indices = kernels.join_indices(sections.counts, sections.offsets, ctx.meta.numel)
        values = torch.zeros(indices.numel(), device=out.device)
        self._inner._decode_add(sections.values, self._inner_context(ctx), values, 1.0)
        kernels.scatter_add(values, indices, out, weight)

    def _sections(self, payload: torch.Tensor, meta: TensorMeta) -> _Sections:
        counts_end = _COUNT_BYTES * _chunks(meta)
        offsets_end = counts_end + _OFFSET_BYTES * self.entries(meta)
        return _Sections(
            payload[:counts_end].view(torch.int32),
            payload[counts_end:offsets_end].view(torch.int16),
            payload[offsets_end : self._values_at(meta)],
            payload[self._values_at(meta) :],
        )

    def _values_at(self, meta: TensorMeta) -> int:
        """Where the values begin: the offsets are filled up to a multiple of 4 bytes."""
        used = _COUNT_BYTES * _chunks(meta) + _OFFSET_BYTES * self.entries(meta)
        return used + -used % 4

    @property
    def _inner(self) -> Compressor:
        """The codec of the values."""
        return self.values or _RAW

    def _inner_meta(self, meta: TensorMeta) -> TensorMeta:
        return TensorMeta(name=meta.name, shape=(self.entries(meta),), dtype=torch.float32)

    def _inner_context(self, ctx: Context) -> Context:
        return replace(ctx, meta=self._inner_meta(ctx.meta))


def _chunks(meta: TensorMeta) -> int:
    return -(-meta.numel // kernels.CHUNK)
