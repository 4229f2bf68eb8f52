"""Momenta are averaged over the ranks that hold replicas: of a pipeline's stage, or of an expert."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import deepspeed
import gradwire.deepspeed_comp  # noqa: F401 - registers the optimizers
import pytest
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.pipe import PipelineModule

WIDTH, BATCH, STEPS, FREEZE = 64, 4, 8, 3
OPTIMIZERS = ["OneBitAdam", "OneBitLamb", "ZeroOneAdam"]


def config(optimizer: str, accumulation: int = 1) -> dict[str, Any]:
    freeze = "var_freeze_step" if optimizer == "ZeroOneAdam" else "freeze_step"
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": accumulation,
        "steps_per_print": 10**9,
        "optimizer": {"type": optimizer, "params": {"lr": 1e-2, freeze: FREEZE}},
    }


def batch(seed: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(seed))


def everywhere(tensors: Iterable[torch.Tensor], group: Any = None) -> list[torch.Tensor]:
    """What every rank of the group holds."""
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, flat, group=group)
    return gathered


@pytest.fixture(autouse=True)
def _no_pipeline_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed keeps a pipeline's groups for the whole process."""
    monkeypatch.setattr(deepspeed.utils.groups, "mpu", None)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_pipeline_averages_over_the_replicas_of_a_stage_and_its_engine_stops(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    stages = dist.get_world_size() // 2
    model = PipelineModule(layers, num_stages=stages, loss_fn=torch.nn.MSELoss(), partition_method="uniform")
    parameters = list(model.parameters())
    engine = deepspeed.initialize(model=model, model_parameters=parameters, config=config(optimizer, 2))[0]
    reduced: list[int] = []
    reduce = engine.allreduce_bucket

    def noted(*arguments: Any, **options: Any) -> Any:
        reduced.append(engine.global_steps)
        return reduce(*arguments, **options)

    monkeypatch.setattr(engine, "allreduce_bucket", noted)
    inputs = batch(engine.grid.get_data_parallel_rank())
    losses = [float(engine.train_batch(iter([(inputs, inputs.tanh())] * 2))) for _ in range(STEPS)]
    assert sorted(set(reduced)) == list(range(FREEZE))
    group = engine.mpu.get_data_parallel_group()
    assert dist.get_world_size(group) == 2
    first, second = everywhere(parameters, group)
    assert first.equal(second)
    assert losses[-1] < losses[0]


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(WIDTH, WIDTH)
        self.experts = MoE(hidden_size=WIDTH, expert=torch.nn.Linear(WIDTH, WIDTH), num_experts=2, ep_size=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts(self.enter(x))[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_experts_are_averaged_with_their_own_replicas_only(optimizer: str) -> None:
    torch.manual_seed(0)
    model = Experts()
    shared = [parameter for parameter in model.parameters() if getattr(parameter, "allreduce", True)]
    own = [parameter for parameter in model.parameters() if not getattr(parameter, "allreduce", True)]
    groups = split_params_into_different_moe_groups_for_optimizer({"params": [*shared, *own], "name": "all"})
    engine = deepspeed.initialize(model=model, model_parameters=groups, config=config(optimizer))[0]
    inputs = batch(dist.get_rank())
    for _ in range(STEPS):
        engine.backward((engine(inputs) - inputs.tanh()).square().mean())
        engine.step()
    first, *others = everywhere(shared)
    assert all(other.equal(first) for other in others)
    momenta = everywhere(engine.optimizer.state[parameter]["exp_avg"] for parameter in own)
    for tensors in (everywhere(own), momenta):
        for rank, tensor in enumerate(tensors):
            assert tensor.equal(tensors[rank % 2])
        assert not tensors[0].equal(tensors[1])
