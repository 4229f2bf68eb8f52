"""Top-k: the largest entries and where they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from . import kernels
from .base import Compressor, Context, Encoded, State, TensorMeta
from .dense import Cast, NoCompression
from .errors import ConfigError
from .options import check_flag, check_fraction, count
from .quantizers import Quantizer, TwoBit

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
        values: how the values are sent: None for fp32, or `FP16()`, `BF16()`, `FP8()`, `Int8()`, `Int4()` or
            `TwoBit()`; or such a codec's spec, as "int8".
        sampled: send at most as many, those that reach a magnitude which up to 65 536 samples tell, in less time
            (1712.01887). The payload's size is that of the exact choice, and a part of its entries stays free: at 1 %
            some 13 % of a tensor of 8 million values and a third of one of 150 000, at 0.1 % half of a million.
            Tensors of which the samples would say too little are treated exactly.
        error_feedback: wrap in `ErrorFeedback` by default. Without it, small entries are never sent.
    """

    ratio: float = 0.01
    values: Cast | Quantizer | TwoBit | str | None = None
    sampled: bool = False
    error_feedback: bool = True

    def __post_init__(self) -> None:
        check_fraction("ratio", self.ratio)
        check_flag("sampled", self.sampled)
        check_flag("error_feedback", self.error_feedback)
        if isinstance(self.values, str):
            from .spec import parse_spec  # which knows this class

            values = parse_spec(self.values)
            object.__setattr__(self, "values", None if isinstance(values, NoCompression) else values)
        if self.values is not None and not isinstance(self.values, Cast | Quantizer | TwoBit):
            allowed = "FP16(), BF16(), FP8(), Int8(), Int4() or TwoBit(), or a spec such as 'int8'"
            raise ConfigError(f"values is {self.values!r}, expected None (fp32), {allowed}")

    @property
    def sparse(self) -> bool:
        return True

    @property
    def codec_id(self) -> int:
        return 4

    @property
    def counters(self) -> frozenset[str]:
        return self._inner.counters

    def entries(self, meta: TensorMeta) -> int:
        return count(self.ratio, meta.numel)

    def nbytes(self, meta: TensorMeta) -> int:
        if meta.numel == 0:
            return 0
        k = self.entries(meta)
        values = 4 * k if self.values is None else self._inner.nbytes(_values_meta(meta.name, k))
        return kernels.indices_of(meta.numel, k, not self.sampled).nbytes + values

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        k, exact = self.entries(ctx.meta), not self.sampled
        if self.values is None:
            return state, kernels.top_k_encode(feed, k, payload, None, exact)
        values = torch.empty(k, device=payload.device)
        finite = kernels.top_k_encode(feed, k, payload, values, exact)
        if finite is False:
            return state, False
        inner = kernels.Feed(values, rest=None if feed.rest is None else values)
        section = payload[self._values_at(ctx.meta) :]
        after, _ = self._inner._encode(inner, state, self._inner_context(ctx), section)
        if feed.rest is not None:
            kernels.put(values, payload, feed.rest, exact)
        return after, finite

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        k, exact = self.entries(ctx.meta), not self.sampled
        if self.values is None:
            kernels.sparse_decode_add(payload, k, out, weight, exact)
            return
        values = _zeros(k, out.device)
        self._inner._decode_add(payload[self._values_at(ctx.meta) :], self._inner_context(ctx), values, 1.0)
        kernels.sparse_add(values, payload, out, weight, exact)

    def _clear(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor) -> None:
        kernels.clear(payload, self.entries(ctx.meta), out, not self.sampled)

    def _values_at(self, meta: TensorMeta) -> int:
        """Where the values begin."""
        return kernels.indices_of(meta.numel, self.entries(meta), not self.sampled).nbytes

    @property
    def _inner(self) -> Compressor:
        """The codec of the values."""
        return self.values if isinstance(self.values, Compressor) else _RAW

    def _inner_meta(self, meta: TensorMeta) -> TensorMeta:
        return _values_meta(meta.name, self.entries(meta))

    def _inner_context(self, ctx: Context) -> Context:
        return Context(meta=self._inner_meta(ctx.meta), step=ctx.step, rank=ctx.rank, seed=ctx.seed)


def _zeros(k: int, device: torch.device) -> torch.Tensor:
    """Not by torch's threads on a CPU: these go on spinning for a while, where those of the kernels want to run."""
    return torch.from_numpy(np.zeros(k, dtype=np.float32)) if device.type == "cpu" else torch.zeros(k, device=device)


@lru_cache(maxsize=4096)
def _values_meta(name: str, k: int) -> TensorMeta:
    return TensorMeta(name=name, shape=(k,), dtype=torch.float32)
