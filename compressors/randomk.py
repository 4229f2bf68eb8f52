"""Random-k: entries that all ranks draw alike, so that no index travels and a plain all-reduce adds them up."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import kernels
from .base import Compressor, Context, Encoded, State, TensorMeta
from .options import check_flag, check_fraction, count
from .seeds import derive

__all__ = ["RandomK"]


@dataclass(frozen=True, kw_only=True)
class RandomK(Compressor):
    """`ratio * numel` entries (rounded up, at least one), drawn anew for each step from the shared seed.

    The tensor is cut into k runs whose lengths differ by one at most, and one entry is drawn from each: no entry
    depends on another draw, so nothing is sorted or kept. With error feedback the values are sent as they are. Without
    it each is multiplied by the length of its run, which makes the result unbiased, and noisy.

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

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        return state, kernels.draw_encode(feed, self.entries(ctx.meta), _seed(ctx), payload)

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.draw_decode_add(payload, _seed(ctx), not self.error_feedback, out, weight)

    def _clear(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor) -> None:
        out.index_fill_(0, kernels.draw(ctx.meta.numel, self.entries(ctx.meta), _seed(ctx), out.device), 0.0)


def _seed(ctx: Context) -> int:
    return derive(ctx.seed, ctx.meta.name, ctx.step)
