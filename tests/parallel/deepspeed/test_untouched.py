"""What is not a sum of gradients passes through bit for bit, and `detach` leaves nothing behind."""

from __future__ import annotations

from typing import Any

import deepspeed.comm as ds_comm
import deepspeed.comm.comm
import pytest
import torch
import torch.distributed as dist
from gradwire import NoCompression, TopK, UsageError
from gradwire.deepspeed_comp import attach, detach
from support.zero import Terms, config, exact, initialize, owed, parameters, train

from .conftest import Attach

STAGES = pytest.mark.parametrize("stage", range(4))
METHODS = ("all_reduce", "reduce", "reduce_scatter_tensor")


def bits(engine: Any) -> dict[str, bytes]:
    return {name: parameter.numpy().tobytes() for name, parameter in parameters(engine).items()}


def sums() -> list[torch.Tensor]:
    """Collectives of a script: through DeepSpeed, as large as buckets of gradients."""
    world, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.randn(world * 700, generator=torch.Generator().manual_seed(rank))
    first, second, third = mine.clone(), mine.clone(), torch.empty(700)
    ds_comm.all_reduce(first)
    ds_comm.reduce(second, 0)
    ds_comm.reduce_scatter_fn(third, mine.clone())
    return [first, second if rank == 0 else torch.empty(0), third]


class Asking(torch.autograd.Function):
    """Asks for sums during backward, like a model whose layers talk to each other."""

    found: list[list[torch.Tensor]] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        Asking.found.append(sums())
        return gradients[0]


class Talking(Terms):
    def forward(self, batch: int) -> torch.Tensor:
        return Asking.apply(super().forward(batch))


@STAGES
def test_sums_of_the_script_are_exact_at_any_time(stage: int, compress: Attach) -> None:
    expected = sums()
    engine = initialize(Talking(), config(stage))
    compress(engine, TopK(ratio=0.05))
    Asking.found.clear()
    train(engine, 2)
    Asking.found.append(sums())
    assert len(Asking.found) == 3
    for found in Asking.found:
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@STAGES
def test_warmup_steps_are_deepspeeds_own(stage: int, compress: Attach) -> None:
    plain, engine = (initialize(Terms(), config(stage, accumulation=2)) for _ in range(2))
    attachment = compress(engine, TopK(ratio=0.05), warmup_steps=2)
    for one in (plain, engine):
        train(one, 2)
    assert bits(plain) == bits(engine)
    assert not attachment.statistics.buckets
    train(engine, 1, first=2)
    assert attachment.statistics.steps == 1
    expected, found = exact(Terms(), 3, 2), parameters(engine)
    for name in ("terms.0.weight", "terms.2.weight"):
        debt = owed(attachment, name)
        assert debt.abs().max() > 0.1
        torch.testing.assert_close(found[name].double() - debt, expected[name], rtol=0, atol=1e-5)


@STAGES
def test_detach_leaves_deepspeed_as_it_was(stage: int) -> None:
    communication = deepspeed.comm.comm.cdb
    engine = initialize(Terms(), config(stage))
    owners = [engine, engine.optimizer, communication]
    before = [set(vars(owner)) for owner in owners]
    attach(engine, NoCompression())
    assert set(METHODS) <= set(vars(communication))
    train(engine, 1)
    detach(engine)
    assert [set(vars(owner)) - before[index] for index, owner in enumerate(owners)] == [
        {"_gradwire_checkpoints", "save_checkpoint", "load_checkpoint"},
        set(),
        set(),
    ]
    with pytest.raises(UsageError, match="no compression is attached to this engine"):
        detach(engine)


def test_two_engines_have_compression_of_their_own() -> None:
    engines = [initialize(Terms(), config(stage)) for stage in (0, 2)]
    first, second = (attach(engine, TopK(ratio=ratio)) for engine, ratio in zip(engines, (0.05, 0.2), strict=True))
    for engine in engines:
        train(engine, 1)
    assert second.statistics.last.sent_bytes > 2 * first.statistics.last.sent_bytes
    detach(engines[0])
    train(engines[1], 1)
    assert (first.statistics.steps, second.statistics.steps) == (1, 2)
    detach(engines[1])
    assert not set(METHODS) & set(vars(deepspeed.comm.comm.cdb))


@STAGES
def test_after_detach_training_goes_on_exactly(stage: int) -> None:
    plain, engine = (initialize(Terms(), config(stage)) for _ in range(2))
    attach(engine, TopK(ratio=0.05), warmup_steps=1)
    for one in (plain, engine):
        train(one, 1)
    detach(engine)
    for one in (plain, engine):
        train(one, 2, first=1)
    assert bits(plain) == bits(engine)
