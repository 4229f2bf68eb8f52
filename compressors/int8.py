"""Eight bits per element, and one scale per block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import kernels
from .base import Compressor, Context, State, TensorMeta
from .options import check_flag, check_int
from .seeds import derive

__all__ = ["Int8"]

_SCALE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Int8(Compressor):
    """Levels from -127 to 127 times a scale per block, which is the block's largest magnitude / 127.

    Stochastic rounding is unbiased: rounding up happens with the probability that makes the expectation exact.
    It draws from a private generator, seeded by the base seed, the tensor's name, the step and the rank.

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
        return _SCALE_BYTES * self._blocks(meta) + meta.numel

    def _encode(self, flat: torch.Tensor, state: State, ctx: Context, payload: torch.Tensor) -> State:
        scales, levels = self._sections(payload, ctx.meta)
        seed = derive(ctx.seed, ctx.meta.name, ctx.step, ctx.rank) if self.stochastic else None
        kernels.block_peaks(flat, self.block, scales)
        kernels.quantize(flat, scales, self.block, levels, seed)
        return state

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        scales, levels = self._sections(payload, ctx.meta)
        kernels.check_scales(scales)
        kernels.dequantize_add(levels, scales, self.block, out, weight)

    def _blocks(self, meta: TensorMeta) -> int:
        return -(-meta.numel // self.block)

    def _sections(self, payload: torch.Tensor, meta: TensorMeta) -> tuple[torch.Tensor, torch.Tensor]:
        end = _SCALE_BYTES * self._blocks(meta)
        return payload[:end].view(torch.float32), payload[end:].view(torch.int8)
