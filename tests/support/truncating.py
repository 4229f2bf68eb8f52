"""A compressor as a user would write one: error feedback, a state per tensor, a count of its steps; it can fail."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from gradwire import Compressor, Context, State, TensorMeta
from gradwire.compressors import kernels
from gradwire.compressors.base import Encoded

__all__ = ["Trap", "Truncated"]


@dataclass
class Trap:
    """Which rank raises, when, and where; shared by the compressors of all ranks."""

    rank: int = -1
    step: int = -1
    tensor: str = ""

    def spring(self, ctx: Context) -> None:
        if (ctx.rank, ctx.step, ctx.meta.name.partition("[")[0]) == (self.rank, self.step, self.tensor):
            raise ArithmeticError(f"{self.tensor} cannot be truncated on rank {self.rank}")


@dataclass(frozen=True, kw_only=True)
class Truncated(Compressor):
    """Keeps the integers of `levels * x`, as bytes or, with `sums`, as floating point that an all-reduce adds."""

    levels: float = 8.0
    sums: bool = False
    error_feedback: bool = True
    trap: Trap = field(default_factory=Trap, repr=False)

    def summable(self, meta: TensorMeta) -> bool:
        return self.sums

    def wire_dtype(self, meta: TensorMeta) -> torch.dtype:
        return torch.float16 if self.sums else torch.uint8

    def nbytes(self, meta: TensorMeta) -> int:
        return meta.numel * (2 if self.sums else 1)

    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        self.trap.spring(ctx)
        flat, finite = kernels.total(feed)
        if not finite:
            return state, False
        levels = (flat * self.levels).trunc().clamp(-127, 127)
        payload.copy_(levels if self.sums else levels.to(torch.int8).view(torch.uint8))
        if feed.rest is not None:
            self._decode_add(payload, ctx, feed.rest, -1.0)
        return {**state, "steps": state.get("steps", torch.tensor(0)) + 1}, True

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        levels = payload if self.sums else payload.view(torch.int8)
        out.add_(levels.to(torch.float32), alpha=weight / self.levels)
