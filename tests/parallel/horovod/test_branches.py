"""Backward differs from rank to rank: other parameters, in another order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import FP16, Compression, OneBit, RandomK, TopK
from support.horovod_training import assert_ranks_equal, filled, noise, states, values, wrapped
from torch import nn

pytestmark = pytest.mark.usefixtures("hvd")

COMPRESSORS: dict[str, Callable[..., Compression]] = {
    "top-k": lambda **options: TopK(ratio=0.2, min_numel=8, **options),
    "1 bit": lambda **options: OneBit(block=8, min_numel=8, **options),
    "random-k": lambda **options: RandomK(ratio=0.2, min_numel=8, **options),
    "fp16": lambda **options: FP16(**options),
}
every_compressor = pytest.mark.parametrize("make", COMPRESSORS.values(), ids=COMPRESSORS)


class Branches(nn.Module):
    """Sums the branches that are asked for; backward goes through them in the reverse order."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 4) for _ in range(count))

    def forward(self, x: torch.Tensor, used: list[int]) -> torch.Tensor:
        total = x.new_zeros(len(x), 4)
        for index in used:
            total = total + self.branches[index](x)
        return total


def step(net: Branches, optimizer: Any, used: list[int], number: int) -> None:
    optimizer.zero_grad()
    if used:
        net(noise((3, 6), number, hvd.rank()), used).square().mean().backward()
    optimizer.step()
    assert_ranks_equal(net.parameters())


def small_buckets() -> dict[str, int]:
    """Some matrices in each bucket, so that several are under way at once."""
    return {"bucket_bytes": 300}


@every_compressor
def test_another_order_on_every_rank(make: Callable[..., Compression]) -> None:
    """The order of the gradients does not change a bit of the result."""
    mixed, plain = filled(Branches(8)), filled(Branches(8))
    shuffled, straight = wrapped(mixed, make(**small_buckets())), wrapped(plain, make(**small_buckets()))
    for number in range(4):
        order = list(range(8))
        random.Random(f"{number} {hvd.rank()}").shuffle(order)
        for net, optimizer, used in ((mixed, shuffled, order), (plain, straight, list(range(8)))):
            optimizer.zero_grad()
            for index in used:
                net.branches[index](noise((3, 6), number, hvd.rank())).square().mean().backward()
            optimizer.step()
            assert_ranks_equal(net.parameters())
        if hvd.size() == 2 or not plain_sum(make()):
            assert torch.equal(values(mixed), values(plain))
        else:  # Horovod adds in an order that depends on what it fuses
            torch.testing.assert_close(values(mixed), values(plain), rtol=1e-3, atol=1e-3)


def plain_sum(compression: Compression) -> bool:
    return isinstance(compression, FP16 | RandomK)


@every_compressor
def test_random_branches_on_every_rank(make: Callable[..., Compression]) -> None:
    net = filled(Branches(12))
    optimizer = wrapped(net, make(**small_buckets()))
    chooser = random.Random(f"branches {hvd.rank()}")
    for number in range(60 if make is COMPRESSORS["top-k"] else 12):
        step(net, optimizer, chooser.sample(range(12), chooser.randint(0, 12)), number)


def test_a_missing_gradient_is_zero_and_releases_the_residual() -> None:
    net = filled(Branches(2))
    compression = TopK(ratio=0.2, min_numel=8)
    optimizer = wrapped(net, compression)
    step(net, optimizer, [0, 1], 0)
    owed = _owed(compression, "branches.1.weight")
    assert owed.any()
    before = net.get_parameter("branches.1.weight").detach().clone()
    for number in range(1, 6):  # 24 entries, 5 of them in each step
        step(net, optimizer, [0], number)
    assert not _owed(compression, "branches.1.weight").any()
    assert not torch.equal(net.get_parameter("branches.1.weight"), before)


def _owed(compression: Compression, name: str) -> torch.Tensor:
    found = [state for _, tensor, key, state in states(compression) if (tensor, key) == (name, "residual")]
    return torch.frombuffer(bytearray(found[0]), dtype=torch.float32)


def test_one_rank_uses_nothing_at_all() -> None:
    net = filled(Branches(3))
    optimizer = wrapped(net, OneBit(block=8, min_numel=8))
    for number in range(8):
        step(net, optimizer, [] if hvd.rank() == number % hvd.size() else [0, 1, 2], number)


def test_no_rank_uses_a_parameter_for_some_steps() -> None:
    net = filled(Branches(3))
    optimizer = wrapped(net, TopK(ratio=0.2, min_numel=8))
    for number, used in enumerate([[0], [0], [0, 1], [2], [1, 2], [0, 1, 2]]):
        step(net, optimizer, used, number)


def test_no_rank_uses_anything_in_the_first_step() -> None:
    net = filled(Branches(2))
    optimizer = wrapped(net, TopK(ratio=0.2, min_numel=8))
    for number, used in enumerate([[], [0, 1], []]):
        step(net, optimizer, used, number)
