"""Models that DistributedDataParallel treats in a way of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradwire import NoCompression, TopK
from gradwire.backends import ddp
from support.ddp_training import (
    Net,
    assert_nothing_is_lost,
    assert_ranks_equal,
    grads,
    in_two_dtypes,
    loss_of,
    train,
    wrapped,
)
from torch import nn

pytestmark = pytest.mark.usefixtures("transport")


# Parameters that are not used.


def no_arguments(step: int, rank: int) -> dict[str, Any]:
    return {}


def sometimes(step: int, rank: int) -> dict[str, Any]:
    """All ranks use the spare layer, or one, or none."""
    return {"spare": step % 3 == 0 or (step % 3 == 1 and rank == 0)}


def test_a_layer_that_no_rank_needs_keeps_its_gradient() -> None:
    model = wrapped(find_unused_parameters=True)
    compression = ddp.compress(model, TopK(ratio=0.2), min_numel=8)
    train(model, range(3), arguments=lambda step, rank: {"spare": False})
    assert model.module.spare.weight.grad is None
    train(model, range(3, 6), arguments=lambda step, rank: {"spare": rank == 0})
    assert model.module.spare.weight.grad is not None
    assert_ranks_equal(model.parameters())
    assert compression.statistics.steps == 6


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("exchange", ["gather", "two_phase", "sparse"])
def test_what_is_owed_to_a_layer_waits_until_a_rank_needs_it(exchange: str, view: bool) -> None:
    """DDP drops what a hook gives for a layer that no rank has used."""
    model = wrapped(find_unused_parameters=True, gradient_as_bucket_view=view)
    compression = ddp.compress(model, TopK(ratio=0.2), min_numel=8, exchange=exchange)
    assert_nothing_is_lost(model, compression, range(9), sometimes)
    assert_ranks_equal(model.parameters())


def test_a_gradient_that_is_kept_stays_as_it_is() -> None:
    """It may be a view of the bucket that the hook has written to."""
    model = wrapped(find_unused_parameters=True, gradient_as_bucket_view=True)
    ddp.compress(model, TopK(ratio=0.2), min_numel=8)
    loss_of(model, 0, dist.get_rank()).backward()
    model.zero_grad(set_to_none=False)
    loss_of(model, 1, dist.get_rank(), lambda step, rank: {"spare": False}).backward()
    assert not grads(model)["spare.weight"].any()


def test_what_was_used_without_a_sync_counts() -> None:
    model = wrapped(find_unused_parameters=True)
    ddp.compress(model, NoCompression())
    with model.no_sync():
        loss_of(model, 0, dist.get_rank()).backward()
    loss_of(model, 1, dist.get_rank(), lambda step, rank: {"spare": False}).backward()
    assert_ranks_equal([grads(model)["spare.weight"]])
    assert grads(model)["spare.weight"].any()


def test_parameters_that_ddp_is_told_to_ignore() -> None:
    net = Net()
    net._ddp_params_and_buffers_to_ignore = ["spare.weight"]  # pyright: ignore[reportArgumentType] - torch's own way
    model = wrapped(net)
    compression = ddp.compress(model, TopK(ratio=0.2), min_numel=8)
    train(model, range(2))
    assert "spare.weight" not in {tensor.name for tensor in compression.statistics.tensors}
    assert_ranks_equal([p for name, p in net.named_parameters() if not name.startswith("spare")])


def test_shared_parameters_travel_once() -> None:
    net = Net()
    net.spare.weight = net.second.weight
    model = wrapped(net)
    compression = ddp.compress(model, TopK(ratio=0.2), min_numel=8)
    assert_nothing_is_lost(model, compression, range(4))


# Dtypes and layouts.


@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_buckets_of_several_dtypes(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """In the first step of a static graph no bucket says that it is the last one."""
    model = wrapped(in_two_dtypes(dtype), **options)
    compression = ddp.compress(model, TopK(ratio=0.2), min_numel=8)
    train(model, range(3))
    assert {gradient.dtype for gradient in grads(model).values()} == {dtype, torch.float32}
    assert_ranks_equal(model.parameters())
    assert compression.statistics.steps == 3


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("codec", [NoCompression(), TopK(ratio=0.1)], ids=str)
def test_gradients_keep_their_parameters_layout(codec: NoCompression | TopK, view: bool) -> None:
    """DDP shows a hook the elements as they lie in memory."""
    conv, linear = nn.Conv2d(5, 6, 2), nn.Linear(6, 4)
    conv.weight = nn.Parameter(conv.weight.contiguous(memory_format=torch.channels_last))
    linear.weight = nn.Parameter(torch.randn(6, 4).t())
    net = nn.Sequential(nn.Unflatten(1, (5, 2, 2)), conv, nn.Flatten(), linear)
    model = wrapped(net, gradient_as_bucket_view=view)
    compression = ddp.compress(model, codec, min_numel=8)
    assert_nothing_is_lost(model, compression, range(4))
    assert not conv.weight.is_contiguous()
    assert not linear.weight.is_contiguous()


# Sparse gradients.


def embedded() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(30, 60, sparse=True), nn.Linear(60, 60), nn.Linear(60, 2))


@pytest.mark.parametrize("only", [False, True])
def test_sparse_gradients_go_the_way_of_ddp(only: bool) -> None:
    stock, ours = (wrapped(embedded()[0] if only else embedded()) for _ in range(2))
    compression = ddp.compress(ours, NoCompression())
    words = torch.tensor([dist.get_rank(), 7, 7])
    for step in range(3):
        for model in (stock, ours):
            model.zero_grad()
            model(words + step).square().sum().backward()
        for name, gradient in grads(stock).items():
            torch.testing.assert_close(grads(ours)[name], gradient)
    assert len(compression.statistics.tensors) == (0 if only else 4)


# Inputs that are not even.


@pytest.mark.parametrize("unused", [False, True])
def test_without_compression_it_joins_as_the_stock_model(unused: bool) -> None:
    """The mean is over all ranks, those too which have joined."""
    stock, ours = (wrapped(find_unused_parameters=unused) for _ in range(2))
    ddp.compress(ours, NoCompression())
    for model in (stock, ours):
        with model.join():
            train(model, range(2 + dist.get_rank()))
    for one, other in zip(stock.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("unused", [False, True])
def test_a_rank_that_has_joined_sends_what_it_owes(unused: bool) -> None:
    model = wrapped(find_unused_parameters=unused)
    compression = ddp.compress(model, TopK(ratio=0.2), min_numel=8)
    with model.join():
        train(model, range(2 + dist.get_rank()), arguments=sometimes if unused else no_arguments)
    assert_ranks_equal(model.parameters())
    assert compression.statistics.steps == 1 + dist.get_world_size()
