"""What Horovod allows between backward and step, and what it refuses."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import OneBit, TopK
from support.horovod_training import assert_ranks_equal, loss, model, train, values, wrapped

pytestmark = pytest.mark.usefixtures("hvd")


def test_none_or_zeros_makes_no_difference() -> None:
    results = []
    for set_to_none in (True, False):
        net = model()
        optimizer = wrapped(net, OneBit(block=8, min_numel=8))
        for step in range(5):
            net.zero_grad(set_to_none=set_to_none)
            head = step % 2 == 0 or hvd.rank() == 0  # in every other step most ranks use the first layer only
            (loss(net, step) if head else net[0](torch.ones(2, 7)).square().mean()).backward()
            optimizer.step()
            assert_ranks_equal(net.parameters())
        results.append(values(net))
    assert torch.equal(*results)


@pytest.mark.parametrize("groups", [None, 1], ids=["hooks", "group"])
def test_two_backwards_without_a_step_are_refused_by_horovod(groups: int | None) -> None:
    net = model()
    optimizer = wrapped(net, TopK(ratio=0.2, min_numel=8), groups=groups)
    train(net, optimizer, range(2))
    optimizer.zero_grad()
    loss(net, 2).backward()
    with pytest.raises(AssertionError):
        loss(net, 3).backward()
    optimizer.step()
    train(net, optimizer, range(4, 7))


def test_zero_grad_before_the_step_is_refused_by_horovod() -> None:
    net = model()
    optimizer = wrapped(net, TopK(ratio=0.2, min_numel=8))
    loss(net, 0).backward()
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    optimizer.step()
    assert_ranks_equal(net.parameters())
    train(net, optimizer, range(1, 3))


def test_a_closure() -> None:
    """Horovod reduces before it calls the closure, whose gradients are this rank's own; as in stock Horovod."""
    net = model()
    optimizer = wrapped(net, TopK(ratio=0.2, min_numel=8))
    loss(net, 0).backward()
    seen = []
    optimizer.step(lambda: seen.append(1))
    assert seen == [1]
    assert_ranks_equal(net.parameters())
