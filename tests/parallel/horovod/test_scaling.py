"""A gradient is averaged once, or added up once: `op`, predivide factor and accumulation."""

from __future__ import annotations

from collections.abc import Callable

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import Compression, NoCompression, TopK
from support.horovod_training import assert_ranks_equal, grad, loss, model, states, train, values, wrapped

pytestmark = pytest.mark.usefixtures("hvd")

LOSSLESS = {
    "dense": lambda: NoCompression(),
    "top-k of all": lambda: TopK(ratio=1.0, min_numel=0, exchange="gather"),
    "top-k of what is there": lambda: TopK(ratio=0.25, min_numel=0),
}


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("groups", [None, 1], ids=["hooks", "group"])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=["average", "sum"])
@pytest.mark.parametrize("make", LOSSLESS.values(), ids=LOSSLESS)
def test_ones(make: Callable[..., Compression], op: int, groups: int | None, passes: int) -> None:
    """Every rank's gradient is 1 in one row of four, and 0 elsewhere: nothing is lost, nothing is left over."""
    layer = torch.nn.Linear(16, 4, bias=False)
    compression = make()
    optimizer = wrapped(layer, compression, op=op, groups=groups, backward_passes_per_step=passes)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(passes):
            layer.weight[1].sum().backward()
        optimizer.synchronize()
        expected = torch.zeros(4, 16)
        expected[1] = passes * (1 if op == hvd.Average else hvd.size())
        assert torch.equal(grad(layer.weight), expected)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert not any(any(value) for *_, value in states(compression))


def _world() -> list[float]:
    return [1.0, 2.0, float(hvd.size())]


@pytest.mark.parametrize("which", [0, 1, 2], ids=["1", "2", "world size"])
def test_a_predivide_factor_does_not_change_the_average(which: int) -> None:
    """It is there for dtypes that overflow in the sum; here nothing is added up in the gradient's own dtype."""
    net, plain = model(), model()
    factor = _world()[which]
    train(net, wrapped(net, TopK(ratio=0.2, min_numel=8), gradient_predivide_factor=factor), range(4))
    train(plain, wrapped(plain, TopK(ratio=0.2, min_numel=8)), range(4))
    torch.testing.assert_close(values(net), values(plain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_passes_against_stock_horovod(passes: int) -> None:
    net, stock = model(), model()
    train(net, wrapped(net, NoCompression(), backward_passes_per_step=passes), range(3), passes)
    train(stock, wrapped(stock, hvd.Compression.none, backward_passes_per_step=passes), range(3), passes)
    torch.testing.assert_close(values(net), values(stock), rtol=1e-5, atol=1e-6)


def test_sum_and_average_keep_the_same_residuals() -> None:
    """A residual belongs to this rank's gradient, before anything is added up."""
    found = []
    for op in (hvd.Average, hvd.Sum):
        net = model()
        compression = TopK(ratio=0.2, min_numel=8)
        optimizer = wrapped(net, compression, op=op)
        for step in range(3):
            optimizer.zero_grad()
            loss(net, step).backward()
            optimizer.synchronize()
            assert_ranks_equal(map(grad, net.parameters()))
            with optimizer.skip_synchronize():
                pass
        found.append(states(compression))
    assert found[0] == found[1]
