"""16-bit models, mixed ones, and parameters of awkward shapes and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import BF16, FP16, Compression, Int8, NoCompression, OneBit, RandomK, TopK
from support.horovod_training import RATE, assert_ranks_equal, filled, grad, model, noise, wrapped
from torch import nn

pytestmark = pytest.mark.usefixtures("hvd")

COMPRESSORS: dict[str, Callable[[], Compression]] = {
    "none": lambda: NoCompression(),
    "fp16": lambda: FP16(),
    "bf16": lambda: BF16(),
    "top-k": lambda: TopK(ratio=0.2, min_numel=8),
    "random-k": lambda: RandomK(ratio=0.2, min_numel=8),
    "1 bit": lambda: OneBit(block=16, min_numel=8),
    "int8": lambda: Int8(block=32, min_numel=8),
}
every_compressor = pytest.mark.parametrize("make", COMPRESSORS.values(), ids=COMPRESSORS)


def step(net: nn.Module, optimizer: Any, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    before = [(g.dtype, g.shape, g.stride()) for g in map(grad, net.parameters())]
    optimizer.step()
    assert [(g.dtype, g.shape, g.stride()) for g in map(grad, net.parameters())] == before
    assert all(torch.isfinite(parameter).all() for parameter in net.parameters())
    assert_ranks_equal(net.parameters())


@every_compressor
@pytest.mark.parametrize(
    ("dtype", "groups"), [(torch.bfloat16, None), (torch.bfloat16, 1), (torch.float16, None), (torch.float64, None)]
)
def test_models_of_one_dtype(make: Callable[[], Compression], dtype: torch.dtype, groups: int | None) -> None:
    net = model().to(dtype)
    optimizer = wrapped(net, make(), groups=groups)
    for number in range(2):
        x = noise((4, 7), number, hvd.rank()).to(dtype)
        step(net, optimizer, net(x).square().mean())
    assert all(grad(parameter).dtype == dtype for parameter in net.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_dense_16_bit_gradient_is_the_mean(dtype: torch.dtype) -> None:
    layer = nn.Linear(6, 5, bias=False).to(dtype)
    optimizer = wrapped(layer, NoCompression())
    (layer.weight * noise((5, 6), hvd.rank()).to(dtype)).sum().backward()
    optimizer.synchronize()
    mean = torch.stack([noise((5, 6), rank).to(dtype).double() for rank in range(hvd.size())]).mean(0)
    torch.testing.assert_close(grad(layer.weight).double(), mean, rtol=0.02, atol=0.02)
    with optimizer.skip_synchronize():
        optimizer.step()


def test_sums_of_large_16_bit_gradients_do_not_overflow() -> None:
    """Case 1 of the reports: 40000 on every rank has the mean 40000."""
    layer = nn.Linear(8, 8, bias=False)
    optimizer = wrapped(layer, FP16())
    (40000.0 * layer.weight).sum().backward()
    optimizer.synchronize()
    torch.testing.assert_close(grad(layer.weight), torch.full((8, 8), 40000.0), rtol=1e-3, atol=0)
    with optimizer.skip_synchronize():
        optimizer.step()


@every_compressor
def test_a_model_of_two_dtypes(make: Callable[[], Compression]) -> None:
    net = filled(nn.Sequential(nn.Linear(6, 8).bfloat16(), nn.Linear(8, 4)))
    optimizer = wrapped(net, make())
    for number in range(3):
        hidden = net[0](noise((3, 6), number, hvd.rank()).bfloat16())
        step(net, optimizer, net[1](hidden.float()).square().mean())


@every_compressor
def test_channels_last(make: Callable[[], Compression]) -> None:
    net = filled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)))
    plain = filled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)))
    net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] - torch does not declare this form
    optimizer = wrapped(net, make())
    for number in range(3):
        x = noise((2, 3, 6, 6), number, hvd.rank())
        step(net, optimizer, net(x.to(memory_format=torch.channels_last)).square().mean())
    assert not grad(net.get_parameter("0.weight")).is_contiguous()
    stock = torch.optim.SGD(plain.parameters(), lr=RATE)
    if isinstance(make(), NoCompression):
        for number in range(3):
            stock.zero_grad()
            losses = [plain(noise((2, 3, 6, 6), number, rank)).square().mean() for rank in range(hvd.size())]
            (torch.stack(losses).mean()).backward()
            stock.step()
        torch.testing.assert_close(net.get_parameter("2.weight"), plain.get_parameter("2.weight"), rtol=1e-4, atol=1e-5)


class Odd(nn.Module):
    """A scalar, and parameters without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.empty(0))
        self.no_rows = nn.Parameter(torch.empty(0, 4))
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([self.no_rows, self.linear(x)])
        return self.gain * rows + self.nothing.sum()


@every_compressor
@pytest.mark.parametrize("groups", [None, 9], ids=["hooks", "a group each"])
def test_scalars_and_empty_parameters(make: Callable[[], Compression], groups: int | None) -> None:
    net = filled(Odd())
    net.gain.data.fill_(1.0)
    optimizer = wrapped(net, make(), groups=groups)
    for number in range(3):
        step(net, optimizer, net(noise((3, 6), number, hvd.rank())).square().mean())
    assert grad(net.gain).shape == ()
    assert grad(net.no_rows).shape == (0, 4)
