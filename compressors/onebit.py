"""One bit per element: the sign, and one scale per block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import kernels
from .base import Compressor, Context, Encoded, State, TensorMeta
from .options import check_choice, check_flag, check_int

__all__ = ["OneBit"]

_ORDERS = {"l1": 1, "l2": 2}


@dataclass(frozen=True, kw_only=True)
class OneBit(Compressor):
    """Signs, packed eight to a byte, times a scale per block (Seide 2014; EF-sign, 1901.09847).

    sign(0) is +1. A block of zeros decodes to exact zeros. The last block may be shorter; its scale is over its
    true length. With a scale per 2048 elements an element costs 1.016 bits. An element that never gets a gradient
    is sent as ± scale all the same; with error feedback its residual never exceeds the largest scale so far.

    Attributes:
        block: elements that share a scale, a multiple of 8; None for one scale over the whole tensor.
        scale: "l1" for the mean magnitude (a contraction on any input), "l2" for the root mean square
            (as DeepSpeed's 1-bit optimizers; may enlarge the error where magnitudes differ widely).
        error_feedback: wrap in `ErrorFeedback` by default.
    """

    block: int | None = 2048
    scale: str = "l1"
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if self.block is not None:
            check_int("block", self.block, 8, 1 << 31, multiple=8)
        check_choice("scale", self.scale, tuple(_ORDERS))
        check_flag("error_feedback", self.error_feedback)

    @property
    def codec_id(self) -> int:
        return 6

    def nbytes(self, meta: TensorMeta) -> int:
        return kernels.sign_bytes(meta.numel, self._length(meta))

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        return state, kernels.sign_encode(feed, self._length(ctx.meta), _ORDERS[self.scale], payload)

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.sign_decode_add(payload, self._length(ctx.meta), out, weight)

    def _decode(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.sign_decode_add(payload, self._length(ctx.meta), out, weight, fresh=True)

    def _length(self, meta: TensorMeta) -> int:
        return self.block or max(1, meta.numel)
