"""Helpers for tests of the reducer: models as tables of shapes, gradients from seeds, ranks as threads."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from gradwire import (
    BF16,
    FP8,
    FP16,
    Compressor,
    ErrorFeedback,
    Int4,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    SizePolicy,
    TensorMeta,
    TopK,
    TwoBit,
    with_defaults,
)
from gradwire.backends import GradientReducer, Transport, run_ranks

Shapes = Mapping[str, tuple[int, ...]]
States = tuple[dict[str, dict[str, torch.Tensor]], dict[str, dict[str, torch.Tensor]]]

SHAPES: Shapes = {"w1": (40, 37), "b1": (37,), "w2": (33, 64), "scalar": (), "nothing": (0, 4), "w3": (5, 7, 3)}
COMPRESSORS: list[Compressor] = [
    NoCompression(),
    FP16(),
    BF16(),
    TopK(ratio=0.1),
    ErrorFeedback(TopK(ratio=0.05, values=FP16())),
    RandomK(ratio=0.1),
    RandomK(ratio=0.1, error_feedback=False),
    OneBit(),
    OneBit(block=64, scale="l2"),
    Int8(),
    Int8(block=32, stochastic=True),
    Int4(block=32),
    FP8(block=32),
    TwoBit(block=32),
    TopK(ratio=0.2, values="twobit", sampled=True),
    SizePolicy(ErrorFeedback(OneBit()), min_numel=0, min_ndim=0),
]


def metas(shapes: Shapes, dtype: torch.dtype = torch.float32) -> list[TensorMeta]:
    return [TensorMeta(name=name, shape=shape, dtype=dtype) for name, shape in shapes.items()]


def gradient(
    name: str, shape: tuple[int, ...], rank: int, step: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Different on every rank, in every step and for every tensor; the same in every run."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {rank} {step}".encode()))
    return torch.randn(shape, generator=generator).to(dtype)


def exact_mean(
    name: str, shape: tuple[int, ...], world_size: int, step: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    grads = [gradient(name, shape, rank, step, dtype).double() for rank in range(world_size)]
    return torch.stack(grads).mean(0)


def run_steps(
    compressor: Compressor,
    shapes: Shapes,
    world_size: int,
    steps: int = 3,
    dtype: torch.dtype = torch.float32,
    *,
    donate: bool = False,
    ordered: bool = True,
    orders: Sequence[Sequence[str]] | None = None,
    **options: Any,
) -> list[list[dict[str, torch.Tensor]]]:
    """Means by rank, step and name. `orders[rank]` is the order in which a rank's backward produces gradients."""

    def rank_main(transport: Transport) -> list[dict[str, torch.Tensor]]:
        reducer = GradientReducer(compressor, transport, **options)
        reducer.register(metas(shapes, dtype))
        return [one_step(reducer, shapes, step, dtype, donate, orders) for step in range(steps)]

    return run_ranks(world_size, rank_main, ordered=ordered)


def one_step(
    reducer: GradientReducer,
    shapes: Shapes,
    step: int,
    dtype: torch.dtype = torch.float32,
    donate: bool = False,
    orders: Sequence[Sequence[str]] | None = None,
) -> dict[str, torch.Tensor]:
    rank = reducer.transport.rank
    for name in orders[rank] if orders else shapes:
        reducer.ready(name, gradient(name, shapes[name], rank, step, dtype), donate=donate)
    return {name: reducer.wait(name) for name in shapes}


def assert_ranks_equal(results: Sequence[Sequence[Mapping[str, torch.Tensor]]]) -> None:
    """Bitwise, in every step, for every tensor."""
    for rank, steps in enumerate(results[1:], start=1):
        for step, (first, other) in enumerate(zip(results[0], steps, strict=True)):
            for name in first:
                assert bits(first[name]) == bits(other[name]), (
                    f"{name} differs between ranks 0 and {rank} in step {step}"
                )


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def ids(compressor: object) -> str:
    return repr(compressor).replace(" ", "")


def copy_states(reducer: GradientReducer) -> States:
    """Residuals and all else that a reducer keeps between steps, of this rank and of its shards."""
    return copy.deepcopy(reducer._states), copy.deepcopy(reducer._servers)


def assert_states_equal(actual: States, expected: States) -> None:
    """Bitwise, entry by entry."""
    for here, there in zip(actual, expected, strict=True):
        assert here.keys() == there.keys()
        for name in here:
            assert {key: bits(value) for key, value in here[name].items()} == {
                key: bits(value) for key, value in there[name].items()
            }, name


def everything(compressor: Compressor) -> Compressor:
    """The codec as a reducer would wrap it, but for tensors of every size."""
    codec = with_defaults(compressor)
    return replace(codec, min_numel=0, min_ndim=0) if isinstance(codec, SizePolicy) else codec
