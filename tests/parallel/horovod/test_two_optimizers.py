"""Two optimizers with equal parameter names, as in adversarial training, share one compression object."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import Compression, OneBit, TopK
from support.horovod_training import RATE, assert_ranks_equal, filled, noise, states, values
from torch import nn

pytestmark = [
    pytest.mark.usefixtures("hvd"),
    # Horovod sees a synchronize() without a step(), as `alternate` means it
    pytest.mark.filterwarnings("ignore:optimizer.step.. called without:UserWarning"),
]

Pair = tuple[nn.Linear, nn.Linear]


def pair() -> Pair:
    return filled(nn.Linear(6, 6), 1), filled(nn.Linear(6, 6), 2)


def optimizer(net: nn.Module, compression: Compression) -> Any:
    """Without names, so that both get Horovod's own: `allreduce.noname.0.0`."""
    return hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=RATE), compression=compression)


def alternate(nets: Pair, compressions: tuple[Compression, Compression], steps: int = 6) -> object:
    """The second model is trained through the first one and the other way round, so backward fills both."""
    optimizers = [optimizer(net, compression) for net, compression in zip(nets, compressions, strict=True)]
    for step in range(steps):
        active, idle = optimizers[step % 2], optimizers[1 - step % 2]
        nets[1](nets[0](noise((4, 6), step, hvd.rank())).tanh()).square().mean().backward()
        active.step()
        active.zero_grad()
        idle.synchronize()
        idle.zero_grad()
        for net in nets:
            assert_ranks_equal(net.parameters())
    return optimizers


MAKERS: dict[str, Callable[[], Compression]] = {
    "top-k": lambda: TopK(ratio=0.1, min_numel=8),
    "1 bit": lambda: OneBit(block=8, min_numel=8),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_one_object_for_both_equals_one_for_each(make: Callable[[], Compression]) -> None:
    shared, own = make(), (make(), make())
    together, apart = pair(), pair()
    alive = alternate(together, (shared, shared)), alternate(apart, own)
    for one, other in zip(together, apart, strict=True):
        assert torch.equal(values(one), values(other))
    kept = sorted(state for *_, state in states(shared))
    assert kept == sorted(state for compression in own for *_, state in states(compression))
    assert len(alive) == len(together)


def test_both_in_one_backward_and_stepped_in_another_order() -> None:
    compression = TopK(ratio=0.1, min_numel=8)
    nets = pair()
    optimizers = [optimizer(net, compression) for net in nets]
    for step in range(4):
        for one in optimizers:
            one.zero_grad()
        nets[1](nets[0](noise((4, 6), step, hvd.rank())).tanh()).square().mean().backward()
        for one in optimizers if step % 2 else reversed(optimizers):
            one.step()
        for net in nets:
            assert_ranks_equal(net.parameters())


def test_the_first_backward_meets_them_in_another_order_on_every_rank() -> None:
    compression = TopK(ratio=0.1, min_numel=8)
    nets = (filled(nn.Linear(6, 6), 1), filled(nn.Linear(6, 7), 2))
    optimizers = [optimizer(net, compression) for net in nets]
    for step in range(4):
        for one in optimizers:
            one.zero_grad()
        for net in nets if hvd.rank() % 2 else reversed(nets):
            net(noise((4, 6), step, hvd.rank())).square().mean().backward()
        for one in optimizers:
            one.step()
        for net in nets:
            assert_ranks_equal(net.parameters())


def test_an_optimizer_that_is_gone_is_forgotten() -> None:
    compression = TopK(ratio=0.1, min_numel=8)
    net = pair()[0]
    one = optimizer(net, compression)
    net(noise((4, 6), hvd.rank())).square().mean().backward()
    one.step()
    assert_ranks_equal(net.parameters())
    assert len(compression._of_optimizers) == 1
    del net, one
    gc.collect()
    assert not compression._of_optimizers
