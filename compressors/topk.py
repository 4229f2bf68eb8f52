"""Exact top-k: the largest entries and where they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from . import kernels
from .base import Compressor, Context, State, TensorMeta
from .dense import Cast, NoCompression
from .errors import ConfigError
from .int8 import Int8
from .options import check_flag, check_fraction, count

__all__ = ["TopK"]

_RAW = NoCompression()


@dataclass(frozen=True, kw_only=True)
class TopK(Compressor):
    """The `ratio * numel` entries of largest magnitude, rounded up and at least one (Stich 2018, 1809.07599).

    Exact, and equal inputs give equal choices: among equal magnitudes the lowest index wins. The ratio counts as
    the decimal number that it prints as: 0.1 of 10 entries is 1. At 1 % an entry costs 1.4 bytes for its place,
    and its value.

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

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> State | None:
        k = self.entries(ctx.meta)
        if self.values is None:
            return state if kernels.top_k_encode(feed, k, payload, None) else None
        values = torch.empty(k, device=payload.device)
        if not kernels.top_k_encode(feed, k, payload, values):
            return None
        inner = kernels.Feed(values, rest=None if feed.rest is None else values)
        after = self.values._encode(inner, state, self._inner_context(ctx), payload[self._values_at(ctx.meta) :])
        if feed.rest is not None:
            kernels.put(values, payload, feed.rest)
        return after

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        k = self.entries(ctx.meta)
        if self.values is None:
            kernels.sparse_decode_add(payload, k, out, weight)
            return
        indices = kernels.sparse_indices(payload, ctx.meta.numel, k)
        values = torch.zeros(k, device=out.device)
        self.values._decode_add(payload[self._values_at(ctx.meta) :], self._inner_context(ctx), values, 1.0)
        kernels.scatter_add(values, indices, out, weight)

    def _values_at(self, meta: TensorMeta) -> int:
        """Where the values begin."""
        return kernels.indices_of(meta.numel, self.entries(meta)).nbytes

    @property
    def _inner(self) -> Compressor:
        """The codec of the values."""
        return self.values or _RAW

    def _inner_meta(self, meta: TensorMeta) -> TensorMeta:
        return _values_meta(meta.name, self.entries(meta))

    def _inner_context(self, ctx: Context) -> Context:
        return Context(meta=self._inner_meta(ctx.meta), step=ctx.step, rank=ctx.rank, seed=ctx.seed)


@lru_cache(maxsize=4096)
def _values_meta(name: str, k: int) -> TensorMeta:
    return TensorMeta(name=name, shape=(k,), dtype=torch.float32)
