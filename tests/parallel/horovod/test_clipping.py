"""Gradients are looked at between reduction and step: one reduction, one move of the residuals, either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import Compression, NoCompression, OneBit, TopK
from support.horovod_training import assert_ranks_equal, grad, loss, model, noise, states, values, wrapped
from torch import nn

pytestmark = pytest.mark.usefixtures("hvd")

WARNING = "without optimizer.skip_synchronize"


def clipped(compression: Compression, steps: int, *, skip: bool, groups: int | None = None) -> nn.Module:
    net = model()
    optimizer = wrapped(net, compression, groups=groups)
    for step in range(steps):
        optimizer.zero_grad()
        loss(net, step).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        if skip:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            with pytest.warns(UserWarning, match=WARNING):
                optimizer.step()
        assert_ranks_equal(net.parameters())
    return net


@pytest.mark.parametrize("groups", [None, 2], ids=["hooks", "groups"])
@pytest.mark.parametrize("make", [TopK, OneBit], ids=lambda factory: factory.__name__)
def test_skip_synchronize_or_not_is_the_same(make: Callable[..., Compression], groups: int | None) -> None:
    options: dict[str, Any] = {"ratio": 0.1} if make is TopK else {"block": 8}
    with_skip, without = (make(min_numel=8, **options) for _ in range(2))
    steps = 20 if make is TopK else 6
    nets = clipped(with_skip, steps, skip=True, groups=groups), clipped(without, steps, skip=False, groups=groups)
    assert torch.equal(*map(values, nets))
    assert states(with_skip) == states(without)
    assert with_skip.statistics.steps == without.statistics.steps == steps


def test_clipping_sees_the_mean() -> None:
    net = model()
    optimizer = wrapped(net, NoCompression())
    loss(net, 0).backward()
    optimizer.synchronize()
    mean = torch.cat([grad(parameter).reshape(-1) for parameter in net.parameters()])
    for rank in range(hvd.size()):
        loss(plain := model(), 0, rank).backward()
        mean = mean - torch.cat([grad(parameter).reshape(-1) for parameter in plain.parameters()]) / hvd.size()
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-6)
    with optimizer.skip_synchronize():
        optimizer.step()


def test_a_step_thrown_away_is_consumed() -> None:
    """`synchronize()` and `zero_grad()`: the residual has moved as in any other step, and training goes on."""
    results = []
    for thrown in (True, False):
        net, compression = model(), TopK(ratio=0.1, min_numel=8)
        optimizer = wrapped(net, compression)
        loss(net, 0).backward()
        optimizer.synchronize()
        if thrown:
            optimizer.zero_grad()
        else:
            with optimizer.skip_synchronize():
                optimizer.step()
        results.append(states(compression))
    assert results[0] == results[1] != []


@pytest.mark.filterwarnings("ignore:optimizer.step.. called without:UserWarning")
def test_steps_thrown_away_now_and_then() -> None:
    net = model()
    compression = TopK(ratio=0.1, min_numel=8)
    optimizer = wrapped(net, compression)
    for step in range(8):
        loss(net, step).backward()
        if step % 3 == 1:
            optimizer.synchronize()
        else:
            optimizer.step()
        optimizer.zero_grad()
        assert_ranks_equal(net.parameters())
    assert compression.statistics.steps == 8


def test_after_a_step_thrown_away_one_rank_has_nothing_to_give() -> None:
    """Its zeros are new gradients, not the means of the step before: this rank must take part all the same."""
    layer = nn.Linear(6, 6, bias=False)
    nn.init.zeros_(layer.weight)
    optimizer = wrapped(layer, NoCompression())
    (layer.weight * noise((6, 6), 0, hvd.rank())).sum().backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    if hvd.rank() != 0:
        (layer.weight * float(hvd.size())).sum().backward()
    with pytest.warns(UserWarning, match=WARNING):
        optimizer.step()
    assert_ranks_equal(layer.parameters())
    torch.testing.assert_close(layer.weight.detach(), torch.full((6, 6), -0.1 * (hvd.size() - 1)))


def test_synchronize_twice_reduces_once() -> None:
    net = model()
    compression = TopK(ratio=0.1, min_numel=8)
    optimizer = wrapped(net, compression)
    loss(net, 0).backward()
    optimizer.synchronize()
    before = [grad(parameter).clone() for parameter in net.parameters()]
    optimizer.synchronize()
    assert all(torch.equal(grad(p), old) for p, old in zip(net.parameters(), before, strict=True))
    assert compression.statistics.steps == 1
    with optimizer.skip_synchronize():
        optimizer.step()
    assert_ranks_equal(net.parameters())
