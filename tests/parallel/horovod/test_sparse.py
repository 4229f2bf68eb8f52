"""Embeddings with sparse gradients beside dense layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from gradwire import UnsupportedError
from gradwire.horovod_comp import NoCompression, TopK
from support.horovod_training import RATE, assert_ranks_equal, filled, grad, states, values, wrapped
from torch import nn

pytestmark = [
    pytest.mark.usefixtures("hvd"),
    # Horovod builds its sparse result with torch's old constructor
    pytest.mark.filterwarnings("ignore:torch.sparse"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]


class Words(nn.Module):
    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 5, sparse=sparse)
        self.linear = nn.Linear(5, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embedding(words).mean(0))


def batches(steps: int, rank: int | None = None) -> Iterator[torch.Tensor]:
    rank = hvd.rank() if rank is None else rank
    for step in range(steps):
        yield (torch.arange(6) + 5 * step + 3 * rank) % 12


def train(net: Words, optimizer: Any, steps: int = 4) -> torch.Tensor:
    for words in batches(steps):
        optimizer.zero_grad()
        net(words).square().mean().backward()
        optimizer.step()
        assert grad(net.embedding.weight).is_sparse == net.embedding.sparse
        assert_ranks_equal(net.parameters())
    return values(net)


@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["sparse", "as dense"])
def test_equals_stock_horovod_without_compression(sparse_as_dense: bool) -> None:
    ours, stock = filled(Words()), filled(Words())
    found = train(ours, wrapped(ours, NoCompression(), sparse_as_dense=sparse_as_dense))
    expected = train(stock, wrapped(stock, hvd.Compression.none, sparse_as_dense=sparse_as_dense))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_sparse_gradients_go_horovods_own_way() -> None:
    net = filled(Words())
    compression = TopK(ratio=0.2, min_numel=8)
    train(net, wrapped(net, compression))
    assert {tensor.name for tensor in compression.statistics.tensors} == {"linear.weight", "linear.bias"}


def test_as_dense_equals_a_dense_embedding() -> None:
    sparse, dense = filled(Words()), filled(Words(sparse=False))
    compressions = TopK(ratio=0.2, min_numel=8), TopK(ratio=0.2, min_numel=8)
    found = train(sparse, wrapped(sparse, compressions[0], sparse_as_dense=True))
    expected = train(dense, wrapped(dense, compressions[1]))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # SGD itself rounds sparse updates differently
    assert compressions[0].statistics.total.sent_bytes == compressions[1].statistics.total.sent_bytes


def test_as_dense_and_clipped_without_skip_synchronize() -> None:
    """`step()` after `synchronize()` reduces nothing a second time, though Horovod makes a new dense copy."""
    skipping, plain = filled(Words()), filled(Words())
    compressions = TopK(ratio=0.2, min_numel=8), TopK(ratio=0.2, min_numel=8)
    for net, compression in zip((skipping, plain), compressions, strict=True):
        optimizer = wrapped(net, compression, sparse_as_dense=True)
        for words in batches(4):
            optimizer.zero_grad()
            net(words).square().mean().backward()
            optimizer.synchronize()
            if net is skipping:
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                with pytest.warns(UserWarning, match="without optimizer.skip_synchronize"):
                    optimizer.step()
            assert_ranks_equal(net.parameters())
    assert torch.equal(values(skipping), values(plain))
    assert states(compressions[0]) == states(compressions[1])


def test_a_sparse_gradient_in_a_group_is_refused() -> None:
    net = filled(Words())
    hvd.DistributedOptimizer(
        torch.optim.SGD(net.embedding.parameters(), lr=RATE),
        named_parameters=net.embedding.named_parameters(),
        compression=TopK(),
        groups=1,
    )
    with pytest.raises(UnsupportedError, match="without groups="):
        net.embedding(torch.tensor([1, 2])).sum().backward()
