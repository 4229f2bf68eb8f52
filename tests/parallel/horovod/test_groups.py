"""`groups=`: Horovod waits for one handle per group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gradwire
import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import BF16, Compression, NoCompression, OneBit, TopK
from support.horovod_training import (
    assert_ranks_equal,
    filled,
    grad,
    loss,
    model,
    noise,
    oracle,
    states,
    train,
    values,
    wrapped,
)
from torch import nn

pytestmark = pytest.mark.usefixtures("hvd")

Groups = Callable[[nn.Module], Any]


def named(net: nn.Module, *names: str) -> list[nn.Parameter]:
    return [net.get_parameter(name) for name in names]


GROUPS: dict[str, Groups] = {
    "one": lambda net: 1,
    "two": lambda net: 2,
    "more than there are parameters": lambda net: 9,
    "lists": lambda net: [named(net, "0.weight", "2.bias"), named(net, "2.weight", "0.bias")],
    "some parameters only": lambda net: [named(net, "2.weight", "0.weight")],
}


@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_groups_change_nothing_but_the_buckets(groups: Groups, exchange: str) -> None:
    """Each tensor is compressed by itself, so its value does not depend on the bucket it travels in."""
    if exchange == "two_phase":  # shards are cut bucket by bucket
        _against_itself_without_compression(groups)
        return
    net = model()
    compression = TopK(ratio=0.2, min_numel=8, exchange=exchange)
    train(net, wrapped(net, compression, groups=groups(net)), range(4))
    expected = oracle(gradwire.with_defaults(gradwire.TopK(ratio=0.2), 8), 4, hvd.size(), exchange=exchange)
    assert torch.equal(values(net), expected)


def _against_itself_without_compression(groups: Groups) -> None:
    net, stock = model(), model()
    train(net, wrapped(net, NoCompression(exchange="two_phase"), groups=groups(net)), range(4))
    train(stock, wrapped(stock, hvd.Compression.none, groups=groups(stock)), range(4))
    torch.testing.assert_close(values(net), values(stock), rtol=1e-5, atol=1e-6)


def test_a_group_is_a_bucket() -> None:
    net = model()
    compression = TopK(ratio=0.2, min_numel=8)
    train(
        net,
        wrapped(net, compression, groups=[named(net, "0.weight", "0.bias"), named(net, "2.weight", "2.bias")]),
        range(2),
    )
    assert len(compression.statistics.buckets) == 2


class Branches(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(7, 3) for _ in range(count))

    def forward(self, x: torch.Tensor, used: list[int]) -> torch.Tensor:
        return torch.stack([self.branches[index](x) for index in used]).sum(0)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=["average", "sum"])
def test_members_without_a_gradient_on_some_ranks(op: int) -> None:
    """Stock Horovod hangs here. A missing gradient is zero, as in the same job without groups."""
    used = {0: [0], 1: [0, 1, 2], 2: [2, 1], 3: [1], 4: [2], 5: [2, 0, 1]}
    nets = [_branches(), _branches()]
    groups = [[p for branch in nets[0].branches for p in branch.parameters()]]
    optimizers = [
        wrapped(nets[0], TopK(ratio=0.2, min_numel=8), groups=groups, op=op),
        wrapped(nets[1], TopK(ratio=0.2, min_numel=8), op=op),
    ]
    for step in range(6):
        branches = used[step if step == 1 else (step + hvd.rank()) % 6]
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            loss(partial(net, used=branches), step).backward()
            optimizer.step()
            assert_ranks_equal(net.parameters())
        assert torch.equal(values(nets[0]), values(nets[1]))


def _branches() -> Branches:
    return filled(Branches(3))


def test_a_group_that_no_rank_uses_for_some_steps() -> None:
    net = _branches()
    compression = OneBit(block=8, min_numel=8)
    optimizer = wrapped(net, compression, groups=[list(branch.parameters()) for branch in net.branches])
    for step, branches in enumerate([[0, 1], [0], [2], [0, 1, 2], [1]]):
        optimizer.zero_grad()
        loss(partial(net, used=branches), step).backward()
        optimizer.step()
        assert_ranks_equal(net.parameters())
    assert compression.statistics.steps == 5


@pytest.mark.parametrize("compression", [TopK, BF16, NoCompression], ids=lambda factory: factory.__name__)
def test_dtypes_mixed_in_a_group(compression: Callable[..., Compression]) -> None:
    layers = [nn.Linear(6, 5).double(), nn.Linear(6, 5).bfloat16(), nn.Linear(6, 5)]
    net = filled(nn.ModuleList(layers))
    optimizer = wrapped(net, compression(min_numel=8), groups=1)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    for step in range(3):
        optimizer.zero_grad()
        x = noise((4, 6), step, hvd.rank())
        torch.stack([layer(x.to(layer.weight.dtype)).double().square().mean() for layer in layers]).sum().backward()
        optimizer.step()
        assert_ranks_equal(net.parameters())
    for parameter, old in zip(net.parameters(), before, strict=True):
        assert grad(parameter).dtype == parameter.dtype == old.dtype
        assert not torch.equal(parameter, old)


@pytest.mark.parametrize("groups", [1, None], ids=["group", "hooks"])
def test_passes_are_accumulated_before_a_group_is_sent(groups: int | None) -> None:
    net, plain = model(), model()
    train(
        net, wrapped(net, TopK(ratio=0.2, min_numel=8), groups=groups, backward_passes_per_step=2), range(3), passes=2
    )
    compression = TopK(ratio=0.2, min_numel=8)
    optimizer = wrapped(plain, compression)
    for step in range(3):
        optimizer.zero_grad()
        (loss(plain, 2 * step) + loss(plain, 2 * step + 1)).backward()
        optimizer.step()
    torch.testing.assert_close(values(net), values(plain), rtol=1e-4, atol=1e-6)
    assert states(compression)
