"""Small models under `DistributedDataParallel`, whose buckets are so small that there are several."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from gradwire.backends.ddp import Compression
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = [
    "Net",
    "assert_equal",
    "assert_nothing_is_lost",
    "assert_ranks_equal",
    "batch",
    "grads",
    "in_two_dtypes",
    "loss_of",
    "mean_grads",
    "train",
    "wrapped",
]

RATE = 0.1

#: keyword arguments for a network's forward, by step and rank
Arguments = Callable[[int, int], dict[str, Any]]


def nothing(step: int, rank: int) -> dict[str, Any]:
    return {}


class Net(nn.Module):
    """Three layers, and one that only some batches need."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(20, 60), nn.Linear(60, 60)
        self.spare, self.last = nn.Linear(60, 60), nn.Linear(60, 4)

    def forward(self, x: torch.Tensor, spare: bool = True) -> torch.Tensor:
        x = self.second(self.first(x).relu()).relu()
        return self.last(self.spare(x).relu() if spare else x)


def in_two_dtypes(dtype: torch.dtype) -> Net:
    """All layers but the last have this one, and buckets of their own."""
    net = Net().to(dtype)
    net.last.float()
    for module in (net.first, net.second, net.spare):
        module.register_forward_pre_hook(lambda _, args: (args[0].to(dtype),))
    net.last.register_forward_pre_hook(lambda _, args: (args[0].float(),))
    return net


def wrapped(net: nn.Module | None = None, cap: float = 0.01, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(net or Net(), bucket_cap_mb=cap, **options)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x[:, :4].sin()


def loss_of(net: nn.Module, step: int, rank: int, arguments: Arguments = nothing) -> torch.Tensor:
    x, y = batch(step, rank)
    return (net(x, **arguments(step, rank)) - y).square().mean()


def train(
    model: DistributedDataParallel,
    steps: Iterable[int],
    before_step: Callable[[int], None] = lambda step: None,
    arguments: Arguments = nothing,
) -> list[float]:
    """Losses of this rank. `before_step` runs when gradients are there."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step, dist.get_rank(), arguments)
        loss.backward()
        before_step(step)
        optimizer.step()
        losses.append(loss.item())
    return losses


def grads(model: nn.Module) -> dict[str, torch.Tensor]:
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: p.grad.clone() for name, p in inner.named_parameters() if p.grad is not None}


def mean_grads(net: nn.Module, step: int, arguments: Arguments = nothing) -> dict[str, torch.Tensor]:
    """Means over the ranks, by a copy of the network that no hook looks at; of what any rank has used."""
    twin = copy.deepcopy(net)
    twin.zero_grad()
    for rank in range(dist.get_world_size()):
        (loss_of(twin, step, rank, arguments) / dist.get_world_size()).backward()
    return grads(twin)


def assert_nothing_is_lost(
    model: DistributedDataParallel, compression: Compression, steps: Iterable[int], arguments: Arguments = nothing
) -> None:
    """What is given and what is still owed add up to the mean gradients of all steps."""
    sums = {name: torch.zeros_like(p) for name, p in model.module.named_parameters()}

    def note(step: int) -> None:
        wanted, given = mean_grads(model.module, step, arguments), grads(model)
        assert given.keys() == wanted.keys()
        for name in wanted:
            sums[name] += given[name] - wanted[name]

    train(model, steps, note, arguments)
    for name, missing in sums.items():
        dist.all_reduce(owed := compression.pending(name))
        torch.testing.assert_close(owed + missing, torch.zeros_like(missing), atol=3e-5, rtol=0)


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    """All parameters, bit for bit."""
    for (name, parameter), (_, twin) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(parameter, twin), name


def assert_ranks_equal(tensors: Iterable[torch.Tensor]) -> None:
    """Bit for bit."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    mine = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    assert all(torch.equal(other, mine) for other in others)
