"""Codecs that send every element: the gradient as it is, or cast to 16 bits."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from . import kernels
from .base import Compressor, Context, Encoded, State, TensorMeta
from .options import check_flag

__all__ = ["BF16", "Cast", "FP16", "NoCompression"]

_SUMMABLE = (torch.float32, torch.float64)


@dataclass(frozen=True, kw_only=True)
class NoCompression(Compressor):
    """The gradient as it is, in its own dtype.

    fp32 and fp64 gradients are summed on the wire. 16-bit ones travel as bytes, so that sums are formed in fp32.
    """

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def linear(self) -> bool:
        return True

    @property
    def codec_id(self) -> int:
        return 1

    def summable(self, meta: TensorMeta) -> bool:
        return meta.dtype in _SUMMABLE

    def nbytes(self, meta: TensorMeta) -> int:
        return meta.raw_bytes

    def wire_dtype(self, meta: TensorMeta) -> torch.dtype:
        return meta.dtype if self.summable(meta) else torch.uint8

    def decompress(
        self, payload: torch.Tensor, ctx: Context, out: torch.Tensor | None = None, weight: float = 1.0
    ) -> torch.Tensor:
        if out is not None or weight != 1.0:
            return super().decompress(payload, ctx, out, weight)
        payload = self._check_payload(payload, ctx.meta)
        return payload.view(ctx.meta.dtype).clone().view(ctx.meta.shape)  # fp64 stays exact

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        finite = kernels.copy(feed.x, payload.view(ctx.meta.dtype))
        if feed.rest is not None:  # where a policy inside a memory lets a tensor travel dense
            feed.rest.zero_()
        return state, finite

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.cast_decode_add(payload.view(ctx.meta.dtype), out, weight)

    def _decode(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.cast_decode_add(payload.view(ctx.meta.dtype), out, weight, fresh=True)


@dataclass(frozen=True, kw_only=True)
class Cast(Compressor):
    """A cast to 16 bits. The honest baseline: no error feedback unless asked for.

    Before the cast a gradient is divided by a power of two that is at least the number of summands, and the sum
    is multiplied by it afterwards: the sum cannot overflow. Finite values beyond the range of the dtype saturate;
    the state's `saturated` counts them.

    Attributes:
        error_feedback: wrap in `ErrorFeedback` by default.
    """

    error_feedback: bool = False

    def __post_init__(self) -> None:
        check_flag("error_feedback", self.error_feedback)

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """What is sent."""

    @property
    def counters(self) -> frozenset[str]:
        return frozenset({"saturated"})

    def summable(self, meta: TensorMeta) -> bool:
        return True

    def nbytes(self, meta: TensorMeta) -> int:
        return meta.numel * self.dtype.itemsize

    def wire_dtype(self, meta: TensorMeta) -> torch.dtype:
        return self.dtype

    def _divisor(self, meta: TensorMeta) -> float:
        return float(1 << (meta.summands - 1).bit_length())

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        return self.counted(state, kernels.cast_encode(feed, self._divisor(ctx.meta), payload.view(self.dtype)))

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.cast_decode_add(payload.view(self.dtype), out, weight * self._divisor(ctx.meta))

    def _decode(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        kernels.cast_decode_add(payload.view(self.dtype), out, weight * self._divisor(ctx.meta), fresh=True)

    @property
    def coding(self) -> kernels.Coding:
        """How `TopK` writes values with this."""
        return kernels.Coding(self.dtype)

    def counted(self, state: State, saturated: int | torch.Tensor) -> Encoded:
        """What an encoder returns if so many values saturated; -1: the input was not finite."""
        before = state.get("saturated")
        if isinstance(saturated, torch.Tensor):  # nobody waits for a device
            count = saturated.clamp(min=0)
            return {**state, "saturated": count if before is None else before + count}, saturated >= 0
        if saturated < 0:
            return state, False
        if before is not None and saturated == 0:
            return state, True
        return {**state, "saturated": torch.tensor(saturated) if before is None else before + saturated}, True


@dataclass(frozen=True, kw_only=True)
class FP16(Cast):
    """Half precision: range ±65504, 11 bits of precision. Options as in `Cast`."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16

    @property
    def codec_id(self) -> int:
        return 2


@dataclass(frozen=True, kw_only=True)
class BF16(Cast):
    """bfloat16: the range of fp32, 8 bits of precision. Options as in `Cast`."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16

    @property
    def codec_id(self) -> int:
        return 3
