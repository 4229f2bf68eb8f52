"""Layers that are frozen and unfrozen, by the rules of stock Horovod."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import NoCompression, TopK
from support.horovod_training import loss, model, train, values, wrapped

pytestmark = pytest.mark.usefixtures("hvd")

Compressions = pytest.mark.parametrize("groups", [None, 1], ids=["hooks", "group"])


@Compressions
def test_frozen_from_the_start(groups: int | None) -> None:
    net = model()
    net[0].requires_grad_(False)
    before = net.get_parameter("0.weight").detach().clone()
    compression = TopK(ratio=0.2, min_numel=8)
    train(net, wrapped(net, compression, groups=groups), range(3))
    assert torch.equal(net.get_parameter("0.weight"), before)
    assert [tensor.name for tensor in compression.statistics.tensors if "0." in tensor.name] == []


def freeze_and_thaw(compression: object, groups: int | None) -> torch.Tensor:
    """A frozen parameter is still submitted, as zeros."""
    net = model()
    optimizer = wrapped(net, compression, groups=groups)
    train(net, optimizer, range(2))
    net[0].requires_grad_(False)
    train(net, optimizer, range(2, 4))
    net[0].requires_grad_(True)
    train(net, optimizer, range(4, 6))
    return values(net)


@Compressions
def test_frozen_and_unfrozen_later_equals_stock_horovod(groups: int | None) -> None:
    ours = freeze_and_thaw(NoCompression(), groups)
    torch.testing.assert_close(ours, freeze_and_thaw(hvd.Compression.none, groups), rtol=1e-5, atol=1e-6)


@Compressions
def test_a_frozen_layer_gets_what_is_still_owed_to_it(groups: int | None) -> None:
    net = model()
    optimizer = wrapped(net, TopK(ratio=0.1, min_numel=8), groups=groups)
    train(net, optimizer, range(2))
    net[0].requires_grad_(False)
    before = net.get_parameter("0.weight").detach().clone()
    train(net, optimizer, range(2, 12))
    released = net.get_parameter("0.weight").detach().clone()
    assert not torch.equal(released, before)
    train(net, optimizer, range(12, 14))
    assert torch.equal(net.get_parameter("0.weight"), released)


def test_unfrozen_after_wrapping_is_never_reduced() -> None:
    """As in stock Horovod, which looks at `requires_grad` once; wrap again to change that."""
    net = model()
    net[0].requires_grad_(False)
    compression = TopK(ratio=0.2, min_numel=8)
    optimizer = wrapped(net, compression)
    net[0].requires_grad_(True)
    loss(net, 0).backward()
    optimizer.step()
    assert all("0." not in tensor.name for tensor in compression.statistics.tensors)
