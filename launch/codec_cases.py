"""What `gradwire bench codecs` measures: codecs, gradients for them, and what their results must be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..compressors import (
    BF16,
    FP8,
    FP16,
    Compressor,
    Context,
    ErrorFeedback,
    Int4,
    Int8,
    OneBit,
    RandomK,
    State,
    TensorMeta,
    TopK,
    TwoBit,
    format_spec,
)
from ..compressors.dense import Cast
from ..compressors.memory import RESIDUAL
from ..compressors.momentum import MOMENTUM, MomentumCorrection
from ..compressors.quantizers import Quantizer
from ..compressors.wrapper import Wrapper
from .runs import RunError

__all__ = ["CODECS", "Case", "cases", "limit", "verify"]

CODECS: tuple[Compressor, ...] = (
    ErrorFeedback(OneBit()),
    ErrorFeedback(TopK(ratio=0.01)),
    ErrorFeedback(TopK(ratio=0.01, sampled=True)),
    ErrorFeedback(TopK(ratio=0.01, values=FP16())),
    ErrorFeedback(TopK(ratio=0.01, values=Int8())),
    ErrorFeedback(TopK(ratio=0.01, values=TwoBit())),
    MomentumCorrection(TopK(ratio=0.01)),
    ErrorFeedback(RandomK(ratio=0.01)),
    ErrorFeedback(Int8(block=256)),
    Int8(block=256, stochastic=True),
    ErrorFeedback(Int4(block=256)),
    ErrorFeedback(FP8(block=256)),
    ErrorFeedback(TwoBit(block=256)),
    FP16(),
    ErrorFeedback(FP16()),
    BF16(),
)

_MEMORIES = {ErrorFeedback: " + error feedback", MomentumCorrection: " + momentum correction"}


@dataclass
class Case:
    """One codec at one size, with what its calls need."""

    codec: Compressor
    source: torch.Tensor
    state: State
    ctx: Context
    #: receives the gradient before each call and may be overwritten by it, as where a host gives its gradient away
    grad: torch.Tensor
    payload: torch.Tensor
    out: torch.Tensor

    #: where the new state goes: to the gradient's own memory, if that is fp32; and to more where there is a momentum
    scratch: torch.Tensor

    def encode(self) -> Any:
        return self.codec.compress(self.grad, self.state, self.ctx, out=self.payload, scratch=self.scratch)

    def decode(self) -> None:
        self.codec.decompress_add(self.payload, self.ctx, self.out, 0.5)

    @property
    def inner(self) -> Compressor:
        """The codec without its memory."""
        return self.codec.compressor if isinstance(self.codec, Wrapper) else self.codec

    @property
    def name(self) -> str:
        return format_spec(self.inner) + _MEMORIES.get(type(self.codec), "")


def cases(numel: int, dtype: torch.dtype, device: str = "cpu") -> Iterator[Case]:
    """All codecs on one gradient, with the state of two steps before."""
    generator = torch.Generator().manual_seed(numel)
    source = torch.randn(numel, generator=generator).to(device, dtype)
    for codec in CODECS:
        ctx = Context(meta=TensorMeta(name="gradient", shape=(numel,), dtype=dtype), step=1)
        before = codec.compress(torch.randn(numel, generator=generator).to(device), codec.init(ctx.meta), ctx)
        last = codec.compress(torch.randn(numel, generator=generator).to(device), before.state, ctx)
        out = torch.zeros(numel, device=device)
        scratch = torch.empty(2 * numel if isinstance(codec, MomentumCorrection) else numel, device=device)
        grad = scratch[:numel].copy_(source) if dtype == torch.float32 else source.clone()
        yield Case(codec, source, last.state, ctx, grad, last.payload, out, scratch)


def limit(codec: Compressor, meta: TensorMeta) -> float:
    """The fewest bytes that could say the same: entropy of the places, and the values' bits without any scales."""
    k = codec.entries(meta)
    if isinstance(codec, TopK):
        bits = 32 if codec.values is None else _bits(codec.values)
        return _entropy(meta.numel, k or 0) + bits * (k or 0) / 8
    return 4.0 * k if k is not None else meta.numel * _bits(codec) / 8


def _bits(codec: object) -> int:
    """Per element, without scales."""
    if isinstance(codec, Quantizer):
        return codec.grid.bits
    return {OneBit: 1, TwoBit: 2}.get(type(codec), 16 if isinstance(codec, Cast) else 32)


def _entropy(numel: int, k: int) -> float:
    """Bytes that say which k of n places: log2 of n over k."""
    return (math.lgamma(numel + 1) - math.lgamma(k + 1) - math.lgamma(numel - k + 1)) / math.log(2) / 8


def verify(case: Case) -> None:
    """What was sent and what was left out make up the input.

    Raises:
        RunError: they do not.
    """
    total = case.source.double()
    if isinstance(case.codec, MomentumCorrection):
        total = total + case.codec.momentum * case.state[MOMENTUM]
    if RESIDUAL in case.state:
        total = total + case.state[RESIDUAL]
    case.grad.copy_(case.source)
    done = case.encode()
    rest = done.state[RESIDUAL].double() if RESIDUAL in done.state else torch.zeros_like(total)
    decoded = torch.zeros(total.numel(), device=total.device)
    case.codec.decompress_add(done.payload, case.ctx, decoded, 1.0)
    gap = float((decoded + rest - total).abs().max())
    # without error feedback, nothing is kept of what a rounding to a level or to 16 bits lost
    allowed = 1e-6 if RESIDUAL in done.state else 1 / 120
    if not gap <= allowed * float(total.abs().max()):
        raise RunError(f"{case.name} on {total.numel()} elements: decoded and left out miss the input by {gap}")
    case.out.zero_()
