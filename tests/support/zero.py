"""DeepSpeed engines for tests: small models at every ZeRO stage, with this process as one of the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

__all__ = ["Net", "Terms", "assert_ranks_equal", "config", "exact", "initialize", "owed", "parameters", "train"]

#: odd sizes, so that everything is padded; "first" and "second" are large enough to be compressed by default
SHAPES: dict[str, tuple[int, ...]] = {
    "first": (37, 41),
    "bias": (41,),
    "second": (5, 7, 61),
    "one": (1,),
    "small": (3, 5),
}


class Term(torch.nn.Module):
    """A parameter, and a gradient for it that depends on the batch alone."""

    def __init__(self, name: str, poison: Sequence[int]) -> None:
        super().__init__()
        self.name = name
        self.poison = poison
        self.weight = torch.nn.Parameter(torch.randn(SHAPES[name]))

    def forward(self, batch: int) -> torch.Tensor:
        return (self.weight * self.gradient(batch).to(self.weight.dtype)).sum().float()

    def gradient(self, batch: int) -> torch.Tensor:
        seed = sum(map(ord, self.name)) * 1000 + batch
        gradient = torch.randn(SHAPES[self.name], generator=torch.Generator().manual_seed(seed))
        return gradient * math.inf if batch in self.poison else gradient


class Terms(torch.nn.Module):
    """A loss that is linear in all parameters: gradients do not depend on them, so that laws hold to the last digits.

    Args:
        poison: batches whose gradients are not finite.
    """

    def __init__(self, poison: Sequence[int] = ()) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.terms = torch.nn.ModuleList([Term(name, poison) for name in SHAPES])

    def forward(self, batch: int) -> torch.Tensor:
        return torch.stack([term(batch) for term in self.terms]).sum()


class Net(torch.nn.Module):
    """Learns four functions of 16 numbers; about 15,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.teacher = torch.randn(16, 4) / 4
        layers = [torch.nn.Linear(16, 128), torch.nn.Tanh(), torch.nn.Linear(128, 96), torch.nn.Tanh()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(96, 4))

    def forward(self, batch: int) -> torch.Tensor:
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(batch))
        return (self.layers(x) - (2 * x @ self.teacher).tanh()).square().mean()


def config(stage: int, *, accumulation: int = 1, zero: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """A ds.json, of small buckets; plain SGD with steps of 1 unless told otherwise."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0,
        "steps_per_print": 1 << 30,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 2500, **(zero or {})},
        **top,
    }


def initialize(model: torch.nn.Module, settings: dict[str, Any]) -> Any:
    return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=settings)[0]


def train(engine: Any, steps: int, first: int = 0) -> list[float]:
    """Every rank has batches of its own; the mean losses of all ranks, by micro-step."""
    losses: list[float] = []
    accumulation = engine.gradient_accumulation_steps()
    for number in range(first * accumulation, (first + steps) * accumulation):
        loss = engine(number * dist.get_world_size() + dist.get_rank())
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def exact(model: Terms, steps: int, accumulation: int = 1) -> dict[str, torch.Tensor]:
    """Where plain SGD with steps of 1 leads from here, by name (fp64); `model` is as it was made."""
    batches = range(steps * accumulation * dist.get_world_size())
    return {
        f"terms.{index}.weight": term.weight.double()
        - sum(term.gradient(batch).double() for batch in batches) / accumulation / dist.get_world_size()
        for index, term in enumerate(model.terms)
        if isinstance(term, Term)
    }


def parameters(engine: Any) -> dict[str, torch.Tensor]:
    """Whole parameters, by name."""
    named = dict(engine.module.named_parameters())
    with deepspeed.zero.GatheredParameters(list(named.values()), enabled=engine.zero_optimization_stage() == 3):
        return {name: parameter.detach().clone() for name, parameter in named.items()}


def owed(attachment: Any, name: str) -> torch.Tensor:
    """What all ranks together still owe of a parameter's gradient."""
    total = attachment.pending(name).clone()
    dist.all_reduce(total)
    return total


def assert_ranks_equal(engine: Any) -> None:
    """Bitwise."""
    flat = torch.cat([parameter.float().reshape(-1) for parameter in parameters(engine).values()]).view(torch.int32)
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    assert torch.equal(low, high)
