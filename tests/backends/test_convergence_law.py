"""The law of error feedback: parameters minus what is still owed follow the uncompressed run."""

from __future__ import annotations

import pytest
import torch
from gradwire import BF16, FP8, FP16, Compressor, Int4, Int8, OneBit, RandomK, TopK, TwoBit
from gradwire.backends import GradientReducer, Transport, run_ranks
from support.reducing import Shapes, bits, everything, gradient, ids, metas
from support.truncating import Truncated

MODEL: Shapes = {"w1": (7, 24), "b1": (24,), "w2": (24, 3), "b2": (3,)}
WORLD_SIZE, STEPS, RATE, DECAY = 3, 30, 0.05, 0.03
REMEMBERING: list[Compressor] = [
    TopK(ratio=0.1),
    TopK(ratio=0.2, values=FP16()),
    TopK(ratio=0.2, values=Int8()),
    RandomK(ratio=0.1),
    OneBit(block=64),
    OneBit(block=None, scale="l2"),
    Int8(block=32),
    Int4(block=32),
    FP8(block=32),
    TwoBit(block=32),
    TopK(ratio=0.2, values="twobit"),
    TopK(ratio=0.2, sampled=True),
    FP16(error_feedback=True),
    BF16(error_feedback=True),
    Truncated(),
]


def gradients(rank: int, step: int) -> dict[str, torch.Tensor]:
    """Of a fixed sequence of losses, so that both runs see the same ones."""
    return {name: gradient(name, shape, rank, step) for name, shape in MODEL.items()}


def uncompressed() -> dict[str, torch.Tensor]:
    """The parameters after plain SGD on the exact means, from zero, in fp64."""
    parameters = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in MODEL.items()}
    for step in range(STEPS):
        for rank in range(WORLD_SIZE):
            for name, grad in gradients(rank, step).items():
                parameters[name] -= RATE * grad.double() / WORLD_SIZE
    return parameters


@pytest.mark.parametrize("exchange", ["auto", "gather", "two_phase"])
@pytest.mark.parametrize("compressor", REMEMBERING, ids=ids)
def test_parameters_and_what_is_owed_follow_the_uncompressed_run(compressor: Compressor, exchange: str) -> None:
    """x - rate * sum over ranks of what they owe, within fp32 rounding of 30 steps."""

    def rank_main(transport: Transport) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        reducer = GradientReducer(everything(compressor), transport, exchange=exchange, bucket_bytes=500)
        reducer.register(metas(MODEL))
        parameters = {name: torch.zeros(shape) for name, shape in MODEL.items()}
        for step in range(STEPS):
            for name, grad in gradients(transport.rank, step).items():
                reducer.ready(name, grad, donate=step % 2 == 1)
            for name, parameter in parameters.items():
                parameter.sub_(RATE * reducer.wait(name))
        return parameters, {name: reducer.pending(name) for name in MODEL}

    ranks = run_ranks(WORLD_SIZE, rank_main)
    for name, exact in uncompressed().items():
        owed = torch.stack([pending[name] for _, pending in ranks]).sum(0)
        torch.testing.assert_close((ranks[0][0][name] - RATE * owed).double(), exact, rtol=1e-4, atol=2e-5)
        assert {bits(parameters[name]) for parameters, _ in ranks} == {bits(ranks[0][0][name])}
    assert any(pending[name].any() for _, pending in ranks for name in MODEL)


@pytest.mark.parametrize("compressor", [TopK(ratio=0.1), OneBit(block=64), RandomK(ratio=0.1)], ids=ids)
def test_compressed_descent_reaches_the_same_minimum(compressor: Compressor) -> None:
    """Every rank has a quadratic loss of its own; SGD with a falling rate ends near the mean of their minima."""
    targets = {name: [gradient(name, shape, rank, 0) for rank in range(WORLD_SIZE)] for name, shape in MODEL.items()}

    def rank_main(transport: Transport) -> dict[str, torch.Tensor]:
        reducer = GradientReducer(everything(compressor), transport)
        reducer.register(metas(MODEL))
        parameters = {name: torch.zeros(shape) for name, shape in MODEL.items()}
        for step in range(120):
            for name, parameter in parameters.items():
                reducer.ready(name, parameter - targets[name][transport.rank])
            for name, parameter in parameters.items():
                parameter.sub_(0.1 / (1 + DECAY * step) * reducer.wait(name))
        return parameters

    for name, parameter in run_ranks(WORLD_SIZE, rank_main)[0].items():
        minimum = torch.stack(targets[name]).mean(0)
        assert float((parameter - minimum).norm()) < 0.15 * float(minimum.norm())
