"""Ranks that do different things: the same error on every one of them, with both values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from gradwire import MismatchError
from gradwire.horovod_comp import Compression, OneBit, TopK
from support.horovod_training import filled, loss, model, noise, train, wrapped
from torch import nn

pytestmark = pytest.mark.usefixtures("hvd")

#: what rank 0 has, what the others have, and a word of each in the message
DIFFERENT: dict[str, tuple[Callable[[], Compression], Callable[[], Compression], str]] = {
    "ratio": (lambda: TopK(ratio=0.2, min_numel=8), lambda: TopK(ratio=0.1, min_numel=8), "ratio=0.2.*ratio=0.1"),
    "compressor": (lambda: TopK(ratio=0.2, min_numel=8), lambda: OneBit(min_numel=8), "TopK.*OneBit"),
    "seed": (lambda: TopK(min_numel=8, seed=1), lambda: TopK(min_numel=8, seed=2), "seed=1.*seed=2"),
    "exchange": (lambda: TopK(min_numel=8), lambda: TopK(min_numel=8, exchange="two_phase"), "auto.*two_phase"),
}


def one_step(optimizer: Any, value: Callable[[], torch.Tensor]) -> None:
    """With `groups=` ranks compare notes in backward, otherwise in the step."""
    value().backward()
    optimizer.step()


@pytest.mark.parametrize("groups", [None, 1], ids=["hooks", "group"])
@pytest.mark.parametrize(("first", "other", "text"), DIFFERENT.values(), ids=DIFFERENT)
def test_options(
    first: Callable[[], Compression], other: Callable[[], Compression], text: str, groups: int | None
) -> None:
    net = model()
    optimizer = wrapped(net, first() if hvd.rank() == 0 else other(), groups=groups)
    with pytest.raises(MismatchError, match=f"ranks disagree: rank 0 has .*{text}"):
        one_step(optimizer, lambda: loss(net, 0))


def test_one_parameter_more() -> None:
    net = nn.Sequential(nn.Linear(7, 3, bias=hvd.rank() == 0))
    optimizer = wrapped(net, TopK(ratio=0.2, min_numel=8))
    with pytest.raises(MismatchError, match=r"0\.bias.*(nothing|0\.weight)"):
        one_step(optimizer, lambda: loss(net, 0))


def test_another_dtype() -> None:
    net = filled(nn.Linear(7, 3))
    if hvd.rank() == 0:
        net = net.double()
    optimizer = wrapped(net, TopK(ratio=0.2, min_numel=8))
    with pytest.raises(MismatchError, match=r"torch.float64.*torch.float32"):
        one_step(optimizer, lambda: net(noise((2, 7)).to(net.weight.dtype)).sum())


def test_another_shape_in_a_call() -> None:
    x = noise((3, 3) if hvd.rank() == 0 else (2, 2))
    with pytest.raises(MismatchError, match=r"\(3, 3\).*\(2, 2\)"):
        hvd.allreduce(x, name="different", compression=TopK(min_numel=0))


def test_horovod_still_works() -> None:
    net = model()
    train(net, wrapped(net, TopK(min_numel=8)), range(2))
