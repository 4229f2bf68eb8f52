"""Few bits per element, and one scale per block."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from . import kernels
from .base import Compressor, Context, Encoded, State, TensorMeta
from .options import check_choice, check_flag, check_int
from .seeds import derive

__all__ = ["FP8", "Int4", "Int8", "Quantizer", "TwoBit"]

_FORMATS = {"e4m3": kernels.E4M3, "e5m2": kernels.E5M2}
_LONGEST = 1 << 31


class Quantizer(Compressor):
    """Each element is rounded to a level times a scale; the largest magnitude of a block is the largest level."""

    block: int

    @property
    @abstractmethod
    def grid(self) -> kernels.Grid:
        """The levels."""

    def nbytes(self, meta: TensorMeta) -> int:
        return kernels.levels_bytes(meta.numel, self.block, self.grid)

    @property
    def coding(self) -> kernels.Coding:
        """How `TopK` writes values with this; a seed is missing where rounding is random."""
        return kernels.Coding(self.grid, self.block)

    def seed(self, ctx: Context) -> int | None:
        """What random rounding draws by; None: to the nearest level."""
        return None

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        return state, kernels.levels_encode(feed, self.grid, self.block, self.seed(ctx), payload)

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.levels_decode_add(payload, self.grid, self.block, out, weight)

    def _decode(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.levels_decode_add(payload, self.grid, self.block, out, weight, fresh=True)


@dataclass(frozen=True, kw_only=True)
class _Integers(Quantizer):
    block: int = 256
    stochastic: bool = False
    error_feedback: bool | None = None

    def __post_init__(self) -> None:
        check_int("block", self.block, 1, _LONGEST)
        check_flag("stochastic", self.stochastic)
        if self.error_feedback is not None:
            check_flag("error_feedback", self.error_feedback)

    @property
    def unbiased(self) -> bool:
        return self.stochastic

    @property
    def wants_memory(self) -> bool:
        return not self.stochastic if self.error_feedback is None else self.error_feedback

    def seed(self, ctx: Context) -> int | None:
        return derive(ctx.seed, ctx.meta.name, ctx.step, ctx.rank) if self.stochastic else None


@dataclass(frozen=True, kw_only=True)
class Int8(_Integers):
    """Levels from -127 to 127 times a scale per block, which is the block's largest magnitude / 127.

    Stochastic rounding is unbiased: rounding up happens with the probability that makes the expectation exact.
    It draws by counting (Philox4x32-10), under a key from the base seed, the tensor's name, the step and the rank.

    Attributes:
        block: elements that share a scale; the last block may be shorter.
        stochastic: round at random instead of to the nearest level.
        error_feedback: wrap in `ErrorFeedback` by default; None means: if rounding is not stochastic.
    """

    @property
    def grid(self) -> kernels.Grid:
        return kernels.INT8

    @property
    def codec_id(self) -> int:
        return 7


@dataclass(frozen=True, kw_only=True)
class Int4(_Integers):
    """As `Int8`, with levels from -7 to 7, two in a byte; `block` is even."""

    def __post_init__(self) -> None:
        check_int("block", self.block, 2, _LONGEST, multiple=2)
        super().__post_init__()

    @property
    def grid(self) -> kernels.Grid:
        return kernels.INT4

    @property
    def codec_id(self) -> int:
        return 8


@dataclass(frozen=True, kw_only=True)
class FP8(Quantizer):
    """Floats of 8 bits times a scale per block (2209.05433), rounded to the nearest.

    Small elements of a block keep their relative precision, as they do not under `Int8`.

    Attributes:
        format: "e4m3" for 4 bits of exponent and 3 of mantissa, "e5m2" for 5 and 2.
        block: elements that share a scale; the last block may be shorter.
        error_feedback: wrap in `ErrorFeedback` by default.
    """

    format: str = "e4m3"
    block: int = 256
    error_feedback: bool = True

    def __post_init__(self) -> None:
        check_choice("format", self.format, list(_FORMATS))
        check_int("block", self.block, 1, _LONGEST)
        check_flag("error_feedback", self.error_feedback)

    @property
    def grid(self) -> kernels.Grid:
        return _FORMATS[self.format]

    @property
    def codec_id(self) -> int:
        return 9


@dataclass(frozen=True, kw_only=True)
class TwoBit(Compressor):
    """The sign of each element, and which of its block's two magnitudes stands for it.

    The magnitudes are the means of those below and not below the block's mean magnitude. Made for the values of
    `TopK`, which are all large.

    Attributes:
        block: elements that share two magnitudes, a multiple of 4; the last block may be shorter.
        error_feedback: wrap in `ErrorFeedback` by default.
    """

    block: int = 256
    error_feedback: bool = True

    def __post_init__(self) -> None:
        check_int("block", self.block, 4, _LONGEST, multiple=4)
        check_flag("error_feedback", self.error_feedback)

    @property
    def codec_id(self) -> int:
        return 10

    @property
    def coding(self) -> kernels.Coding:
        """How `TopK` writes values with this."""
        return kernels.Coding(None, self.block)

    def nbytes(self, meta: TensorMeta) -> int:
        return kernels.two_bit_bytes(meta.numel, self.block)

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        return state, kernels.two_bit_encode(feed, self.block, payload)

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.two_bit_decode_add(payload, self.block, out, weight)

    def _decode(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.two_bit_decode_add(payload, self.block, out, weight, fresh=True)
