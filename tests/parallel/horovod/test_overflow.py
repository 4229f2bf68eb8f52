"""A gradient that is not finite on one rank: no rank applies the step, and no residual moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import Compression, Int8, OneBit, RandomK, TopK
from support.horovod_training import assert_ranks_equal, grad, loss, model, states, values, wrapped
from torch import nn

pytestmark = [
    pytest.mark.usefixtures("hvd"),
    pytest.mark.filterwarnings("ignore:optimizer.step.. called without:UserWarning"),
]

COMPRESSORS: dict[str, Callable[..., Compression]] = {
    "top-k": lambda **options: TopK(ratio=0.2, min_numel=8, **options),
    "random-k": lambda **options: RandomK(ratio=0.2, min_numel=8, **options),
    "1 bit": lambda **options: OneBit(block=16, min_numel=8, **options),
    "1 bit in two phases": lambda **options: OneBit(block=16, min_numel=8, exchange="two_phase", **options),
    "int8": lambda **options: Int8(block=32, min_numel=8, error_feedback=True, **options),
}
every_compressor = pytest.mark.parametrize("make", COMPRESSORS.values(), ids=COMPRESSORS)


class Scaler:
    """As torch's GradScaler: a step with a non-finite gradient is left out. Each rank decides for itself."""

    def __init__(self) -> None:
        self.skipped: list[int] = []

    def step(self, net: nn.Module, optimizer: Any, number: int) -> None:
        if all(torch.isfinite(grad(parameter)).all() for parameter in net.parameters()):
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            self.skipped.append(number)
        assert_ranks_equal(net.parameters())


@every_compressor
@pytest.mark.parametrize(("poison", "groups"), [(float("inf"), None), (float("nan"), 2)], ids=["inf", "nan in a group"])
def test_all_ranks_skip_the_step(make: Callable[..., Compression], poison: float, groups: int | None) -> None:
    net, compression, scaler = model(), make(), Scaler()
    optimizer = wrapped(net, compression, groups=groups)
    for number in range(5):
        optimizer.zero_grad()
        value = loss(net, number)
        bad = number == 2 and hvd.rank() == hvd.size() - 1
        before = values(net), states(compression)
        (value * poison if bad else value).backward()
        optimizer.synchronize()
        scaler.step(net, optimizer, number)
        if number == 2:
            assert torch.equal(values(net), before[0])
            assert states(compression) == before[1]
    assert scaler.skipped == [2]
    assert compression.statistics.steps == 4
    assert compression.statistics.skipped_steps == 1


def test_the_step_after_it_is_as_if_it_had_not_been() -> None:
    results = []
    for steps in ([0, 1, "bad", 2, 3], [0, 1, 2, 3]):
        net, compression, scaler = model(), COMPRESSORS["top-k"](), Scaler()
        optimizer = wrapped(net, compression)
        for number in steps:
            optimizer.zero_grad()
            value = loss(net, 9 if number == "bad" else number)
            (value * float("inf") if number == "bad" and hvd.rank() == 0 else value).backward()
            optimizer.synchronize()
            scaler.step(net, optimizer, 0)
        results.append((values(net), states(compression)))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_one_inf_in_one_element_of_one_parameter() -> None:
    """The other buckets were fine, and are refused all the same."""
    net, compression, scaler = model(), COMPRESSORS["top-k"](bucket_bytes=64), Scaler()
    optimizer = wrapped(net, compression)
    for number in range(3):
        optimizer.zero_grad()
        hook = net.get_parameter("2.weight").register_hook(
            lambda value: value.index_fill(0, torch.tensor(1), float("inf"))
        )
        if number != 1 or hvd.rank() != 0:
            hook.remove()
        loss(net, number).backward()
        hook.remove()
        before = states(compression)
        optimizer.synchronize()
        if number == 1:
            assert states(compression) == before
            assert all(grad(parameter).isnan().all() for parameter in net.parameters())
        scaler.step(net, optimizer, number)
    assert len(compression.statistics.buckets) > 1
    assert scaler.skipped == [1]


def test_after_a_skipped_step_one_rank_has_nothing_to_give() -> None:
    net, compression, scaler = model(), COMPRESSORS["1 bit"](), Scaler()
    optimizer = wrapped(net, compression)
    for number in range(4):
        optimizer.zero_grad()
        if number != 2 or hvd.rank() == 0:
            (loss(net, number) * (float("inf") if number == 1 else 1.0)).backward()
        optimizer.synchronize()
        scaler.step(net, optimizer, number)
    assert scaler.skipped == [1]
    assert compression.statistics.steps == 3
