"""Helpers for tests of compressors: a list of all of them, and gradients of awkward sizes, layouts and values."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from gradwire import (
    BF16,
    FP8,
    FP16,
    Compressor,
    ConfigError,
    Context,
    ErrorFeedback,
    Int4,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    SizePolicy,
    State,
    TensorMeta,
    TopK,
    TwoBit,
)
from hypothesis import strategies as st

RAW: list[Compressor] = [
    NoCompression(),
    FP16(),
    BF16(),
    TopK(),
    TopK(ratio=0.3),
    TopK(ratio=0.1, values=FP16()),
    TopK(ratio=0.1, values=BF16()),
    TopK(ratio=0.1, values=Int8(block=16)),
    TopK(ratio=0.3, values=Int4(block=16)),
    TopK(ratio=0.1, values=FP8()),
    TopK(ratio=0.3, values="twobit:block=8"),
    TopK(ratio=0.2, sampled=True),
    TopK(ratio=0.2, values=FP16(), sampled=True),
    RandomK(ratio=0.1),
    RandomK(ratio=0.6),
    RandomK(ratio=0.1, error_feedback=False),
    OneBit(),
    OneBit(block=8),
    OneBit(block=None),
    OneBit(block=64, scale="l2"),
    Int8(),
    Int8(block=7),
    Int8(stochastic=True),
    Int4(),
    Int4(block=6),
    Int4(stochastic=True),
    FP8(),
    FP8(format="e5m2", block=7),
    TwoBit(),
    TwoBit(block=4),
]


def with_memory(compressors: list[Compressor]) -> list[Compressor]:
    """Error feedback around each codec that takes it."""
    wrapped = []
    for compressor in compressors:
        try:
            wrapped.append(ErrorFeedback(compressor))
        except ConfigError:
            continue
    return wrapped


REMEMBERING = with_memory(RAW)
POLICIES: list[Compressor] = [
    SizePolicy(ErrorFeedback(TopK(ratio=0.1)), min_numel=16, min_ndim=0),
    SizePolicy(ErrorFeedback(OneBit(block=8)), min_numel=16),
    SizePolicy(Int8(stochastic=True), min_numel=0, min_ndim=0),
]
ALL = [*RAW, *REMEMBERING, *POLICIES]

every_compressor = pytest.mark.parametrize("compressor", ALL, ids=repr)

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIZES = (1, 2, 3, 7, 8, 9, 13, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 1009, 2047, 2048, 2049, 4093)
VALUES = ("normal", "heavy", "constant", "zeros", "spike", "tiny", "ties")
LAYOUTS = ("contiguous", "transposed", "strided", "expanded", "channels_last", "scalar")


@dataclass
class Case:
    """A gradient, and the context in which it is compressed."""

    x: torch.Tensor
    ctx: Context

    @property
    def flat(self) -> torch.Tensor:
        return self.x.reshape(-1).to(torch.float32)


def context(x: torch.Tensor, **options: int) -> Context:
    meta = TensorMeta(name="layer.weight", shape=tuple(x.shape), dtype=x.dtype, summands=options.pop("summands", 1))
    return Context(meta=meta, **options)


@st.composite
def cases(
    draw: st.DrawFn,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    layouts: tuple[str, ...] = LAYOUTS,
    values: tuple[str, ...] = VALUES,
) -> Case:
    """Any gradient that is finite."""
    numel = draw(st.sampled_from(SIZES) | st.integers(1, 3000))
    seed = draw(st.integers(0, 2**31))
    flat = make_values(draw(st.sampled_from(values)), numel, seed)
    x = make_layout(draw(st.sampled_from(layouts)), flat.to(draw(st.sampled_from(dtypes))))
    return Case(x, context(x, step=draw(st.integers(0, 5)), rank=draw(st.integers(0, 3)), seed=seed))


def make_values(kind: str, numel: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(numel, generator=generator)
    if kind == "heavy":
        return normal.sign() * (3 * normal).abs().exp().clamp(max=6e4)
    if kind == "constant":
        return torch.full((numel,), float(normal[0]))
    if kind == "zeros":
        return torch.zeros(numel)
    if kind == "spike":
        return torch.zeros(numel).index_fill_(0, torch.tensor([seed % numel]), 3.0)
    if kind == "tiny":
        return normal * 1e-38
    if kind == "ties":
        return normal.round()
    return normal


def make_layout(kind: str, flat: torch.Tensor) -> torch.Tensor:
    """The values in the given layout; some layouts use fewer of them, or repeat them."""
    half = flat.numel() // 2
    if kind == "scalar":
        return flat[0]
    if kind == "expanded":
        return flat[:5].view(-1, 1).expand(-1, 3)
    if kind == "strided":
        return flat[::2]
    if kind == "transposed" and half:
        return flat[: 2 * half].view(2, half).t()
    if kind == "channels_last" and flat.numel() >= 8:
        batch = flat.numel() // 8
        return flat[: 8 * batch].view(batch, 2, 2, 2).to(memory_format=torch.channels_last)
    return flat


def some_state(compressor: Compressor, case: Case) -> State:
    """The state after one step with other values."""
    other = torch.flip(case.x, [0]) if case.x.dim() else case.x * 0.5
    return compressor.compress(other.contiguous(), compressor.init(case.ctx.meta), case.ctx).state


def snapshot(state: State) -> dict[str, bytes]:
    return {key: as_bytes(value) for key, value in state.items()}


def as_bytes(tensor: torch.Tensor) -> bytes:
    fresh = tensor.detach().clone(memory_format=torch.contiguous_format)  # a single element may have any stride
    return fresh.reshape(-1).view(torch.uint8).numpy().tobytes()
