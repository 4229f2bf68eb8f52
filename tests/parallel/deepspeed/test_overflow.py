"""fp16: a step that DeepSpeed skips has not been, and residuals follow the loss scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradwire import OneBit, TopK
from support.zero import Terms, assert_ranks_equal, config, exact, initialize, owed, parameters, train

from .conftest import Attach

FP16: dict[str, Any] = {
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 6, "loss_scale_window": 1000, "hysteresis": 1}
}
STEPS, SKIPPED = 7, (2, 3, 5)
NAMES = [f"terms.{index}.weight" for index in (0, 2)]


def poison(accumulation: int, micro: int) -> list[int]:
    """One batch of the last rank in every step that is to be skipped."""
    numbers = [step * accumulation + micro for step in SKIPPED]
    return [number * dist.get_world_size() + dist.get_world_size() - 1 for number in numbers]


def kept(attachment: Any) -> dict[str, bytes]:
    return {name: attachment.pending(name).numpy().tobytes() for name in NAMES}


@pytest.mark.parametrize("compressor", [TopK(ratio=0.05), OneBit()], ids=repr)
@pytest.mark.parametrize("stage", range(4))
def test_a_skipped_step_leaves_residuals_as_they_were(stage: int, compressor: Any, compress: Attach) -> None:
    engine = initialize(Terms(poison(1, 0)), config(stage, **FP16))
    attachment = compress(engine, compressor)
    for step in range(STEPS):
        before = kept(attachment) if step else {}
        train(engine, 1, first=step)
        assert_ranks_equal(engine)
        assert (kept(attachment) == before) == (step in SKIPPED)
    assert engine.skipped_steps == len(SKIPPED)
    assert attachment.statistics.skipped_steps == len(SKIPPED)
    assert attachment.statistics.steps == STEPS - len(SKIPPED)


@pytest.mark.parametrize("micro", [0, 2])
@pytest.mark.parametrize("stage", range(4))
def test_so_do_micro_steps_before_the_one_that_overflows(stage: int, micro: int, compress: Attach) -> None:
    """At stages 2 and 3 each of them is averaged by itself."""
    engine = initialize(Terms(poison(4, micro)), config(stage, accumulation=4, **FP16))
    attachment = compress(engine, TopK(ratio=0.05))
    train(engine, 2)
    before = kept(attachment)
    train(engine, 1, first=2)
    assert engine.skipped_steps == 1
    assert kept(attachment) == before


@pytest.mark.parametrize("zero", [{}, {"offload_optimizer": {"device": "cpu"}}], ids=["", "offloaded"])
@pytest.mark.parametrize("stage", range(4))
def test_the_run_follows_the_uncompressed_one_and_skips_as_many_steps(
    stage: int, zero: dict[str, Any], compress: Attach
) -> None:
    settings = config(stage, zero=zero if stage else {}, **FP16)
    reference, engine = (initialize(Terms(poison(1, 0)), settings) for _ in range(2))
    attachment = compress(engine, TopK(ratio=0.05))
    for one in (reference, engine):
        train(one, STEPS)
    assert engine.skipped_steps == reference.skipped_steps == len(SKIPPED)
    assert engine.optimizer.loss_scale == reference.optimizer.loss_scale == 2.0 ** (6 - len(SKIPPED))
    expected, debts = parameters(reference), {name: owed(attachment, name) for name in NAMES}
    assert all(debt.abs().max() > (0.01 if stage == 0 else 1) for debt in debts.values())
    for name, parameter in parameters(engine).items():
        followed = parameter.float() - debts.get(name, torch.zeros(()))
        torch.testing.assert_close(followed, expected[name].float(), rtol=0, atol=0.01)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_residuals_follow_a_loss_scale_that_changes(stage: int, compress: Attach) -> None:
    """Set by hand: in the step that raises it, DeepSpeed divides gradients of the old scale by the new one."""
    engine = initialize(Terms(), config(stage, **FP16))
    attachment = compress(engine, TopK(ratio=0.05))
    train(engine, 2)
    engine.optimizer.loss_scale = 1024.0
    train(engine, 1, first=2)
    expected, found = exact(Terms(), 3), parameters(engine)
    for name in NAMES:
        followed = found[name].double() - owed(attachment, name)
        torch.testing.assert_close(followed, expected[name], rtol=0, atol=0.01)
