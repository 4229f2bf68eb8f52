"""For tests of the 1-bit optimizers on threads: an engine that averages gradients while its flag says so."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from gradwire.backends import Transport
from gradwire.deepspeed_comp.momentum import MomentumOptimizer
from gradwire.deepspeed_comp.onebit_adam import OneBitAdam

from .reducing import bits, gradient

LIMIT = 20.0
LR, FREEZE = 1e-2, 3
OPTIONS: dict[str, Any] = {"lr": LR, "freeze_step": FREEZE, "eps": 1e-3}
#: the bias is too small to be compressed
SHAPES = {"weight": (40, 60), "bias": (11,), "row": (3, 700)}

Shapes = Mapping[str, tuple[int, ...]]
#: rank, step and name -> gradient, or None for a parameter that has none on this rank
Gradients = Callable[[int, int, str], "torch.Tensor | None"]


class DeepSpeedEngine:
    """What the optimizers read of an engine; a group is a transport here."""

    def __init__(self, transport: Transport, shapes: Shapes = SHAPES) -> None:
        parameters = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
        self.module = torch.nn.ParameterDict(parameters)
        self.transport = transport
        self.global_rank = transport.rank + 1  # rank 0 would announce
        self.mpu = None
        self.enable_backward_allreduce = True
        self.pipeline_parallelism = False
        self.seq_data_parallel_group: Any = transport
        self.expert_data_parallel_group: dict[str, Any] = {}
        self.sequence_parallel_size = 1
        self.dp_world_size = transport.world_size
        self.stage = 0
        self.fp16 = False
        self.legacy_fusion = False

    def zero_optimization_stage(self) -> int:
        return self.stage

    def fp16_enabled(self) -> bool:
        return self.fp16

    def optimizer_legacy_fusion(self) -> bool:
        return self.legacy_fusion

    @property
    def reduces(self) -> bool:
        return self.enable_backward_allreduce

    def backward(self, gradients: Gradients, step: int) -> None:
        """Set gradients, and average them, missing ones as zeros, if this engine still does that."""
        for name, parameter in self.module.items():
            parameter.grad = gradients(self.transport.rank, step, name)
            if self.reduces:
                mean = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                work = self.transport.all_reduce(mean.view(-1), f"engine.{name}")
                parameter.grad = work.wait(LIMIT).view(parameter.shape) / self.transport.world_size


class PipelineEngine(DeepSpeedEngine):
    """Has its own flag, but only once its optimizer is made."""

    def ready(self) -> None:
        self.enable_backward_allreduce = False
        self.pipeline_enable_backward_allreduce = True

    @property
    def reduces(self) -> bool:
        return self.pipeline_enable_backward_allreduce


class Rank:
    """One rank of a training."""

    def __init__(
        self, transport: Transport, make: Callable[..., MomentumOptimizer], groups: Any = None, **options: Any
    ) -> None:
        self.engine: Any = DeepSpeedEngine(transport)
        module = self.engine.module
        self.optimizer: Any = make(groups(module) if groups else module.parameters(), self.engine, **options)

    def train(self, gradients: Gradients, steps: range | Sequence[int]) -> None:
        for step in steps:
            self.engine.backward(gradients, step)
            self.optimizer.step()

    def moved(self, name: str) -> torch.Tensor:
        """How far a parameter is from its start."""
        return self.engine.module[name].detach() - 1

    def state(self, name: str) -> dict[str, Any]:
        return self.optimizer.state[self.engine.module[name]]

    def values(self) -> dict[str, bytes]:
        """All that should be equal on all ranks, and after a resume: parameters, momenta, variances."""
        tensors = {name: parameter for name, parameter in self.engine.module.items()}
        for name in self.engine.module:
            state = self.state(name)
            tensors |= {f"{name}.{key}": state[key] for key in ("exp_avg", "exp_avg_sq") if key in state}
        return {name: bits(tensor) for name, tensor in tensors.items()}


def trained(
    transport: Transport,
    steps: int,
    gradients: Gradients | None = None,
    make: Callable[..., MomentumOptimizer] = OneBitAdam,
    **options: Any,
) -> Rank:
    rank = Rank(transport, make, **(OPTIONS | options))
    rank.train(gradients or seeded, range(steps))
    return rank


def resumed(transport: Transport, one: Rank, *, ranks: bool = True, **options: Any) -> Rank:
    """A new process, with an optimizer of the same class, that goes on from one; `ranks`: from what this rank kept."""
    other = Rank(transport, type(one.optimizer), **options)
    with torch.no_grad():
        for name, parameter in one.engine.module.items():
            other.engine.module[name].copy_(parameter)
    other.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    if ranks:
        other.optimizer.load_rank_state(copy.deepcopy(one.optimizer.rank_state()))
    return other


# Gradients.


def seeded(rank: int, step: int, name: str) -> torch.Tensor | None:
    """A gradient for everything."""
    return gradient(name, SHAPES[name], rank, step)


def half(rank: int, step: int, name: str) -> torch.Tensor:
    """The first half of the elements gets gradients."""
    grad = gradient(name, SHAPES[name], rank, step)
    grad.view(-1)[grad.numel() // 2 :] = 0
    return grad


def zeros(rank: int, step: int, name: str) -> torch.Tensor:
    return torch.zeros(SHAPES[name])


def without(*lacking: tuple[int, str]) -> Any:
    def gradients(rank: int, step: int, name: str) -> torch.Tensor | None:
        return None if (rank, name) in lacking else seeded(rank, step, name)

    return gradients


def poisoned(step_of: int, value: float, on: int = 1) -> Any:
    def gradients(rank: int, step: int, name: str) -> torch.Tensor:
        grad = gradient(name, SHAPES[name], rank, step)
        if (rank, step, name) == (on, step_of, "weight"):
            grad[3, 5] = value
        return grad

    return gradients


# Comparisons.


def assert_replicas(values: Sequence[Mapping[str, bytes]]) -> None:
    for rank, other in enumerate(values[1:], start=1):
        assert [name for name in other if other[name] != values[0][name]] == [], f"rank {rank} has parted"


def assert_same(one: Any, other: Any) -> None:
    """Nested plain values and tensors; how many steps were skipped may differ."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"skipped_steps"}:
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert bits(one) == bits(other)
    else:
        assert one == other
