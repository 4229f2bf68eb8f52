"""Gradients whose storage autograd shares: with another parameter's, or with what backward has yet to use."""

from __future__ import annotations

from collections.abc import Callable

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import Compression, Int8, NoCompression, TopK
from support.horovod_training import filled, finished, grad, noise, wrapped
from torch import nn

pytestmark = pytest.mark.usefixtures("hvd")

SIZE = 256


class Positions(nn.Module):
    """A batch of one: the gradient of `position` is a view of the one that goes on to `weight`."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(SIZE, SIZE))
        self.weight = nn.Parameter(torch.zeros(SIZE, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x @ self.weight)[None] + self.position[None]).tanh()


class Twins(Positions):
    """Both gradients are views of the same one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight[None] + self.position[None] + x[None]).tanh()


@pytest.mark.parametrize("net", [Positions, Twins])
@pytest.mark.parametrize("make", [NoCompression, Int8, lambda **o: TopK(ratio=0.99, **o)], ids=["none", "int8", "topk"])
def test_every_parameter_gets_the_mean_of_its_own_gradient(
    net: Callable[[], nn.Module], make: Callable[..., Compression]
) -> None:
    module = filled(net())
    optimizer = wrapped(module, make(bucket_bytes=1))
    for step in range(3):
        x = noise((SIZE, SIZE), "x", step, hvd.rank())
        own = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
        means = [finished(hvd.allreduce_async(mine, name=f"mean {number}")) for number, mine in enumerate(own)]
        optimizer.zero_grad()
        module(x).square().sum().backward()
        optimizer.synchronize()
        for parameter, mean in zip(module.parameters(), means, strict=True):
            assert (grad(parameter) - mean).norm() < 0.05 * mean.norm()
        with optimizer.skip_synchronize():
            optimizer.step()
