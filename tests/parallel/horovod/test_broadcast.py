"""Horovod's broadcasts of parameters and optimizer state, whose hidden step is none of ours."""

from __future__ import annotations

from collections.abc import Callable

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import Compression, HorovodTransport, OneBit, TopK
from support.horovod_training import assert_ranks_equal, loss, model, states, train, values, wrapped
from torch import nn

pytestmark = pytest.mark.usefixtures("hvd")

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.01),
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.1),
    "momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    "adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=0.1, initial_accumulator_value=0.1),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


@every_optimizer
def test_before_training(make: Callable[[nn.Module], torch.optim.Optimizer], collectives: list[str]) -> None:
    net = model(hvd.rank())
    compression = TopK(ratio=0.2, min_numel=8)
    optimizer = wrapped(net, compression, make(net))
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    assert torch.equal(values(net), values(model(0)))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert torch.equal(values(net), values(model(0)))
    assert states(compression) == collectives == []
    train(net, optimizer, range(4))
    assert compression.statistics.steps == 4


@every_optimizer
def test_in_mid_training(make: Callable[[nn.Module], torch.optim.Optimizer], collectives: list[str]) -> None:
    net = model()
    compression = OneBit(block=8, min_numel=8)
    optimizer = wrapped(net, compression, make(net))
    train(net, optimizer, range(3))
    before = values(net), states(compression), compression.statistics.steps, list(collectives)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    after = values(net), states(compression), compression.statistics.steps, list(collectives)
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    train(net, optimizer, range(3, 6))


def test_another_start_on_every_rank_ends_in_agreement() -> None:
    """The optimizer's state differs as well: ranks have trained alone before."""
    net = model(hvd.rank())
    alone = torch.optim.Adam(net.parameters(), lr=0.01)
    loss(net, hvd.rank()).backward()
    alone.step()
    optimizer = wrapped(net, TopK(ratio=0.2, min_numel=8), alone)
    hvd.broadcast_parameters(net.state_dict(), root_rank=hvd.size() - 1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=hvd.size() - 1)
    optimizer.zero_grad()
    assert_ranks_equal(net.parameters())
    train(net, optimizer, range(3))


@pytest.mark.parametrize(
    "compress", [lambda: TopK(ratio=0.3, min_numel=8), lambda: OneBit(min_numel=8)], ids=["top-k", "1 bit"]
)
def test_adagrad_learns_as_without_compression(compress: Callable[[], Compression]) -> None:
    """Case 6 of the reports: Adagrad diverged where SGD did not. The loss stays within twice the uncompressed one."""
    finals = []
    for compression in (hvd.Compression.none, compress()):
        net = model()
        optimizer = wrapped(net, compression, OPTIMIZERS["adagrad"](net))
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for step in range(24):
            optimizer.zero_grad()
            loss(net, step % 3).backward()
            optimizer.step()
        assert_ranks_equal(net.parameters())
        with torch.no_grad():
            local = sum(loss(net, step, rank) for step in range(3) for rank in range(hvd.size()))
        finals.append(float(local))
    assert finals[1] < 2 * finals[0]


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all collectives that gradwire starts."""
    started: list[str] = []
    start = HorovodTransport._start

    def noting(self: HorovodTransport, launch: Callable[..., int], size: int, name: str) -> object:
        started.append(name)
        return start(self, launch, size, name)

    monkeypatch.setattr(HorovodTransport, "_start", noting)
    return started
