"""Random-k: entries that all ranks draw alike, so that no index travels and a plain all-reduce adds them up."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import kernels
from .base import Compressor, Context, State, TensorMeta
from .options import check_flag, check_fraction, count
from .seeds import derive

__all__ = ["RandomK"]


@dataclass(frozen=True, kw_only=True)
class RandomK(Compressor):
    """`ratio * numel` entries (rounded up, at least one), drawn anew for each step from the shared seed.

    With error feedback the values are sent as they are. Without it they are multiplied by numel/k, which makes the
    result unbiased, and noisy.

    Attributes:
        ratio: share of the entries that is sent, in (0, 1]; counted as in `TopK`.
        error_feedback: wrap in `ErrorFeedback` by default, and do not scale.
    """

    ratio: float = 0.01
    error_feedback: bool = True

    def __post_init__(self) -> None:
        check_fraction("ratio", self.ratio)
        check_flag("error_feedback", self.error_feedback)

    @property
    def unbiased(self) -> bool:
        return not self.error_feedback

    @property
    def linear(self) -> bool:
        return True

    @property
    def codec_id(self) -> int:
        return 5

    def summable(self, meta: TensorMeta) -> bool:
        return True

    def wire_dtype(self, meta: TensorMeta) -> torch.dtype:
        return torch.float32

    def entries(self, meta: TensorMeta) -> int:
        return count(self.ratio, meta.numel)

    def nbytes(self, meta: TensorMeta) -> int:
        return 4 * self.entries(meta)

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> State | None:
        return state if kernels.gather_encode(feed, self._indices(ctx, payload.device), payload) else None

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.scatter_add(payload, self._indices(ctx, out.device), out, weight * self._scale(ctx.meta))

    def _indices(self, ctx: Context, device: torch.device) -> torch.Tensor:
        seed = derive(ctx.seed, ctx.meta.name, ctx.step)
        return kernels.draw(ctx.meta.numel, self.entries(ctx.meta), seed).to(device)

    def _scale(self, meta: TensorMeta) -> float:
        return 1.0 if self.error_feedback else meta.numel / self.entries(meta)
