"""Part of the ranks train together; the others have no hooks, and go on by themselves."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import NoCompression, OneBit, TopK
from support.horovod_training import assert_ranks_equal, loss, model, train, values, wrapped

pytestmark = pytest.mark.usefixtures("hvd")

Sets = dict[str, hvd.ProcessSet]


@pytest.mark.parametrize(("name", "groups"), [("even", None), ("odd", None), ("even", 2)])
def test_members_agree_and_the_others_are_left_alone(process_sets: Sets, name: str, groups: int | None) -> None:
    """Stock Horovod cannot group in a set without rank 0: it asks rank 0 for the order of the parameters."""
    members = process_sets[name]
    net, alone = model(), model()
    train(net, wrapped(net, OneBit(block=8, min_numel=8), process_set=members, groups=groups), range(4))
    if members.included():
        return
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss(alone, step).backward()
        optimizer.step()
    assert torch.equal(values(net), values(alone))


def test_two_sets_at_once(process_sets: Sets) -> None:
    """Every rank is in one of them; both train a model of the same names and shapes at the same time."""
    mine = next(process_sets[name] for name in ("even", "odd") if process_sets[name].included())
    net = model()
    train(net, wrapped(net, TopK(ratio=0.2, min_numel=8), process_set=mine), range(4))


def test_a_rank_in_two_sets(process_sets: Sets) -> None:
    """One model for all ranks and one for the even ones, by one compression object; the odd ranks have only one."""
    compression = TopK(ratio=0.2, min_numel=8)
    nets = [model(1), model(2)]
    sets = [process_sets["even"], hvd.global_process_set]
    optimizers = [wrapped(net, compression, process_set=ranks) for net, ranks in zip(nets, sets, strict=True)]
    for step in range(4):
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            loss(net, step).backward()
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.step()
            assert_ranks_equal(net.parameters(), optimizer.process_set)


def test_against_stock_horovod(process_sets: Sets) -> None:
    members = process_sets["even"]
    net, stock = model(), model()
    train(net, wrapped(net, NoCompression(), process_set=members), range(3))
    train(stock, wrapped(stock, hvd.Compression.none, process_set=members), range(3))
    torch.testing.assert_close(values(net), values(stock), rtol=1e-5, atol=1e-6)


def test_calls_within_a_set(process_sets: Sets) -> None:
    members = process_sets["even"]
    if not members.included():
        return
    x = torch.full((4, 4), float(hvd.rank()))
    result = hvd.allreduce(x, name="part", op=hvd.Sum, compression=NoCompression(), process_set=members)
    assert torch.equal(result, torch.full((4, 4), float(sum(members.ranks))))
