"""Top-k: the largest entries and where they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from . import kernels
from .base import Compressor, Context, Encoded, State, TensorMeta
from .dense import Cast, NoCompression
from .errors import ConfigError
from .options import check_flag, check_fraction, count, nearest
from .quantizers import Quantizer, TwoBit

__all__ = ["TopK"]


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
            object.__setattr__(self, "values", _coding_of(self.values))
        if self.values is not None and not isinstance(self.values, Cast | Quantizer | TwoBit):
            allowed = "FP16(), BF16(), FP8(), Int8(), Int4() or TwoBit(), or a spec such as 'int8'"
            hint = nearest(self.values, ["fp16", "bf16", "fp8", "int8", "int4", "twobit"])
            raise ConfigError(f"values is {self.values!r}, expected None (fp32), {allowed}{hint}")

    @property
    def sparse(self) -> bool:
        return True

    @property
    def codec_id(self) -> int:
        return 4

    @property
    def counters(self) -> frozenset[str]:
        return self.values.counters if isinstance(self.values, Compressor) else frozenset()

    def entries(self, meta: TensorMeta) -> int:
        return count(self.ratio, meta.numel)

    def nbytes(self, meta: TensorMeta) -> int:
        nbytes = self._sizes.get(meta.numel)
        return self._size(meta.numel) if nbytes is None else nbytes

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        k, exact, codec, coding = count(self.ratio, ctx.meta.numel), not self.sampled, self.values, self._coding
        if coding is None:
            return state, kernels.top_k_encode(feed, k, payload, exact)
        if isinstance(codec, Quantizer) and (seed := codec.seed(ctx)) is not None:
            coding = coding._replace(seed=seed)
        saturated = kernels.coded_encode(feed, k, payload, coding, exact)
        return codec.counted(state, saturated) if isinstance(codec, Cast) else (state, saturated >= 0)

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        k, exact, coding = count(self.ratio, ctx.meta.numel), not self.sampled, self._coding
        if coding is None:
            kernels.sparse_decode_add(payload, k, out, weight, exact)
        else:
            kernels.coded_decode_add(payload, k, coding, out, weight, exact)

    def _clear(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor) -> None:
        kernels.clear(payload, self.entries(ctx.meta), out, not self.sampled)

    def _size(self, numel: int) -> int:
        k = count(self.ratio, numel)
        values = 4 * k if self._coding is None else self._coding.nbytes(k)
        nbytes = kernels.indices_of(numel, k, not self.sampled).nbytes + values if numel else 0
        return self._sizes.setdefault(numel, nbytes)

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """Of payloads, by the number of elements: asked for in every call."""
        return {}

    @cached_property
    def _coding(self) -> kernels.Coding | None:
        """Of the values; None: fp32."""
        return self.values.coding if isinstance(self.values, Cast | Quantizer | TwoBit) else None


def _coding_of(spec: str) -> Compressor | str | None:
    """The codec that a spec names; the spec itself if it names none."""
    from .spec import is_known, parse_spec  # which know the class above

    codec = parse_spec(spec) if is_known(spec) else spec
    return None if isinstance(codec, NoCompression) else codec
