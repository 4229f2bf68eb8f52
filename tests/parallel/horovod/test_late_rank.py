"""A rank that does not come: the others end with an error that names the collective, however Horovod waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import horovod.torch as hvd
import pytest
from gradwire.compressors.errors import TransportError, TransportTimeout
from gradwire.horovod_comp import Compression, TopK
from support.horovod_training import loss, model, noise, train, wrapped

pytestmark = pytest.mark.usefixtures("hvd")

SECONDS = 3.0
StepBy: TypeAlias = Callable[[int], None]


def by_optimizer(compression: Compression, groups: int | None) -> StepBy:
    net = model()
    optimizer = wrapped(net, compression, groups=groups)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss(net, number).backward()
        optimizer.step()

    return step


def by_call(compression: Compression) -> StepBy:
    return lambda number: hvd.allreduce(noise((7, 5), number), name="late", compression=compression)


def by_grouped_call(compression: Compression) -> StepBy:
    return lambda number: hvd.grouped_allreduce([noise((7, 5), number)] * 2, name="late", compression=compression)


def leave_rank_0_out(step: StepBy) -> None:
    """Rank 0 comes when all others have given up."""
    if hvd.rank() == 0:
        hvd.allreduce(noise((1,)), name="the others have given up")
        step(1)
        return
    try:
        with pytest.raises(TransportTimeout, match=r"^gradwire\..*: not finished within 3 s; another rank has not"):
            step(1)
    finally:
        hvd.allreduce(noise((1,)), name="the others have given up")


@pytest.mark.parametrize(
    "make",
    [lambda c: by_optimizer(c, None), lambda c: by_optimizer(c, 1), by_call, by_grouped_call],
    ids=["hooks", "groups", "call", "grouped call"],
)
def test_the_others_get_an_error(make: Callable[[Compression], StepBy]) -> None:
    step = make(TopK(ratio=0.2, min_numel=8, timeout=SECONDS))
    step(0)
    leave_rank_0_out(step)


def test_who_gave_up_takes_no_further_step() -> None:
    step = by_call(TopK(ratio=0.2, min_numel=8, timeout=SECONDS))
    step(0)
    leave_rank_0_out(step)
    if hvd.rank() > 0:
        with pytest.raises(TransportError, match="takes no further step"):
            step(2)


def test_horovod_still_works() -> None:
    net = model()
    train(net, wrapped(net, TopK(min_numel=8)), range(2))
