"""What memories and policies have in common: they wrap a codec, and what is true of it is true of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .base import Compressed, Compressor, Context, Encoded, State, TensorMeta
from .kernels import Feed

__all__ = ["Wrapper"]


@dataclass(frozen=True)
class Wrapper(Compressor):
    """Passes every fact and every call on to the codec it wraps; subclasses override what they change.

    Attributes:
        compressor: the codec to wrap.
    """

    compressor: Compressor

    def _codec(self, meta: TensorMeta) -> Compressor:
        """The codec that serves one tensor; a wrapper that decides by tensor overrides this."""
        return self.compressor

    @property
    def unbiased(self) -> bool:
        return self.compressor.unbiased

    @property
    def linear(self) -> bool:
        return self.compressor.linear

    @property
    def sparse(self) -> bool:
        return self.compressor.sparse

    @property
    def wants_memory(self) -> bool:
        """Never: whether the codec inside gets a memory is settled where it is wrapped."""
        return False

    @property
    def codec_id(self) -> int:
        return self.compressor.codec_id

    @property
    def elementwise_state(self) -> frozenset[str]:
        return self.compressor.elementwise_state

    @property
    def counters(self) -> frozenset[str]:
        return self.compressor.counters

    def summable(self, meta: TensorMeta) -> bool:
        return self._codec(meta).summable(meta)

    def init(self, meta: TensorMeta) -> State:
        return self._codec(meta).init(meta)

    def nbytes(self, meta: TensorMeta) -> int:
        return self._codec(meta).nbytes(meta)

    def entries(self, meta: TensorMeta) -> int | None:
        return self._codec(meta).entries(meta)

    def wire_dtype(self, meta: TensorMeta) -> torch.dtype:
        return self._codec(meta).wire_dtype(meta)

    def decompress(
        self, payload: torch.Tensor, ctx: Context, out: torch.Tensor | None = None, weight: float = 1.0
    ) -> torch.Tensor:
        return self._codec(ctx.meta).decompress(payload, ctx, out, weight)

    def decompress_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float = 1.0) -> None:
        self._codec(ctx.meta).decompress_add(payload, ctx, out, weight)

    def _compress(
        self, vector: torch.Tensor, state: State, ctx: Context, payload: torch.Tensor, scratch: torch.Tensor | None
    ) -> Compressed:
        return self._codec(ctx.meta)._compress(vector, state, ctx, payload, scratch)

    def _encode(self, feed: Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        return self._codec(ctx.meta)._encode(feed, state, ctx, payload)

    def _clear(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor) -> None:
        self._codec(ctx.meta)._clear(payload, ctx, out)

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        self._codec(ctx.meta)._decode_add(payload, ctx, out, weight)

    def _decode(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        self._codec(ctx.meta)._decode(payload, ctx, out, weight)
