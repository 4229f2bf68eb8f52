"""Ranks that share one sequence: whatever DeepSpeed averages over which ranks, and by what it divides, stays as it is.

Ulysses gives the groups as an `mpu`; ds.json makes a mesh of them. In 0.19.8 these average over different ranks at
stages 0 to 2, and stage 3 divides otherwise than these.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import deepspeed
import pytest
import torch
import torch.distributed as dist
from gradwire import Compressor, NoCompression, OneBit, TopK
from gradwire.deepspeed_comp import attachment_of
from gradwire.deepspeed_comp.gradients.averaging import group_of
from support.zero import Term, Terms, config, parameters, train

from .conftest import Attach

#: ranks that share a sequence
SIZE = 2
STEPS = 3


@pytest.fixture(params=["mpu", "mesh"])
def parallel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Options of `deepspeed.initialize`; DeepSpeed keeps the groups for the whole process."""
    for name in ("mpu", "mesh_device"):
        monkeypatch.setattr(deepspeed.utils.groups, name, None)
    if request.param == "mesh":
        yield {"top": {"sequence_parallel_size": SIZE, "data_parallel_size": dist.get_world_size() // SIZE}}
        return
    mpu = importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    for name in ("_SEQUENCE_PARALLEL_GROUP", "_SEQUENCE_DATA_PARALLEL_GROUP"):
        monkeypatch.setattr(mpu, name, None)
    mpu.initialize_sequence_parallel(SIZE)
    yield {"mpu": mpu, "top": {}}


def initialize(model: torch.nn.Module, settings: dict[str, Any], parallel: dict[str, Any]) -> Any:
    settings = {**settings, **parallel["top"]}
    options = {"model": model, "model_parameters": list(model.parameters()), "config": settings}
    return deepspeed.initialize(**options, mpu=parallel.get("mpu"))[0]


def owed(engine: Any, name: str) -> torch.Tensor:
    """What all ranks that average with this one owe together."""
    total = attachment_of(engine).pending(name).clone()
    dist.all_reduce(total, group=group_of(engine))
    return total


@pytest.mark.parametrize("codec", [NoCompression(), TopK(ratio=0.05), OneBit()], ids=repr)
@pytest.mark.parametrize("stage", range(4))
def test_gradients(stage: int, codec: Compressor, parallel: dict[str, Any], compress: Attach) -> None:
    plain, engine = (initialize(Terms(), config(stage), parallel) for _ in range(2))
    assert engine.sequence_parallel_size == SIZE
    compress(engine, codec)
    train(plain, STEPS)
    train(engine, STEPS)
    expected = parameters(plain)
    for name, parameter in parameters(engine).items():
        torch.testing.assert_close(parameter - owed(engine, name), expected[name], rtol=0, atol=1e-5)
    alone = dist.get_world_size(group_of(engine)) == 1  # as in a mesh of two ranks, which share a sequence
    lossless = alone or isinstance(codec, NoCompression)
    assert lossless == (owed(engine, "terms.0.weight").abs().max() < 0.1)


def test_momenta(parallel: dict[str, Any]) -> None:
    """Of small tensors, which travel as they are: as if gradients had gone on being averaged by the engine."""
    rate, (beta1, beta2), eps, freeze = 1e-2, (0.9, 0.99), 1e-8, 2
    params = {"lr": rate, "betas": [beta1, beta2], "eps": eps, "freeze_step": freeze}
    engine = initialize(Terms(), config(0, optimizer={"type": "OneBitAdam", "params": params}), parallel)
    model = Terms()
    ranks = dist.get_process_group_ranks(engine.seq_data_parallel_group)
    train(engine, 3 * freeze)
    found = parameters(engine)
    for index, term in enumerate(model.terms):
        assert isinstance(term, Term)
        if term.weight.numel() >= 1024:
            continue
        weight, momentum, variance = (torch.zeros_like(term.weight).double() for _ in range(3))
        weight += term.weight.detach()
        for step in range(3 * freeze):
            gradients = [term.gradient(step * dist.get_world_size() + rank).double() for rank in ranks]
            gradient = SIZE * sum(gradients) / len(ranks)
            momentum = beta1 * momentum + (1 - beta1) * gradient
            if step < freeze:
                variance = beta2 * variance + (1 - beta2) * gradient**2
            weight -= rate * momentum / (variance.sqrt() + eps)
        torch.testing.assert_close(found[f"terms.{index}.weight"].double(), weight, rtol=0, atol=1e-5)
