"""Eight bits per element, and one scale per block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import kernels
from .base import Compressor, Context, State, TensorMeta
from .options import check_flag, check_int
from .seeds import derive

__all__ = ["Int8"]


@dataclass(frozen=True, kw_only=True)
class Int8(Compressor):
    """Levels from -127 to 127 times a scale per block, which is the block's largest magnitude / 127.

    Stochastic rounding is unbiased: rounding up happens with the probability that makes the expectation exact.
    It draws by counting (Philox4x32-10), under a key from the base seed, the tensor's name, the step and the rank.

    Attributes:
        block: elements that share a scale; the last block may be shorter.
        stochastic: round at random instead of to the nearest level.
        error_feedback: wrap in `ErrorFeedback` by default; None means: if rounding is not stochastic.
    """

    block: int = 256
    stochastic: bool = False
    error_feedback: bool | None = None

    def __post_init__(self) -> None:
        check_int("block", self.block, 1, 1 << 31)
        check_flag("stochastic", self.stochastic)
        if self.error_feedback is not None:
            check_flag("error_feedback", self.error_feedback)

    @property
    def unbiased(self) -> bool:
        return self.stochastic

    @property
    def wants_memory(self) -> bool:
        return not self.stochastic if self.error_feedback is None else self.error_feedback

    @property
    def codec_id(self) -> int:
        return 7

    def nbytes(self, meta: TensorMeta) -> int:
        return kernels.SCALE_BYTES * kernels.blocks_of(meta.numel, self.block) + meta.numel

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> State | None:
        seed = derive(ctx.seed, ctx.meta.name, ctx.step, ctx.rank) if self.stochastic else None
        return state if kernels.int8_encode(feed, self.block, seed, payload) else None

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.int8_decode_add(payload, self.block, out, weight)
