"""The 1-bit optimizers under real engines: however they are handed over, in every precision."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import gradwire.deepspeed_comp as comp
import pytest
import torch
import torch.distributed as dist
from gradwire import ConfigError
from gradwire.deepspeed_comp._host import VERSION
from support.reducing import bits

OPTIMIZERS = ["OneBitAdam", "OneBitLamb", "ZeroOneAdam"]
FREEZING = OPTIMIZERS[:2]
DTYPES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 4}},
}
SCHEDULER = {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-2, "warmup_num_steps": 50}}
WIDTH, FREEZE, STEPS = 48, 3, 8


@pytest.fixture(autouse=True)
def _known_fault() -> Iterator[None]:
    """The warning that DeepSpeed's loss scale is wrong has a test of its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "DeepSpeed .* divides gradients")
        yield


def params(optimizer: str) -> dict[str, Any]:
    lr = 1e-2 if optimizer == "OneBitLamb" else 1e-3  # times a trust ratio, whose average begins at 0
    return {"lr": lr, "var_freeze_step" if optimizer == "ZeroOneAdam" else "freeze_step": FREEZE}


def made(
    optimizer: str | None = None,
    dtype: str = "fp32",
    client: Any = None,
    config: Any = None,
    written: str | None = None,
) -> tuple[Any, torch.nn.Module]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
    block = {"optimizer": {"type": written or optimizer, "params": params(optimizer)}} if optimizer else {}
    shared = {"train_micro_batch_size_per_gpu": 4, "steps_per_print": 1 << 30}
    if client is not None and not callable(client):
        client = client[0](model.parameters(), **client[1])
    engine = deepspeed.initialize(
        model=model,
        model_parameters=list(model.parameters()),
        optimizer=client,
        config={**shared, **block, **DTYPES[dtype], **(config or {})},
    )[0]
    return engine, model


def loss_of(engine: Any, number: int) -> torch.Tensor:
    seed = number * dist.get_world_size() + dist.get_rank()
    batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))
    dtype = next(engine.module.parameters()).dtype
    return (engine(batch.to(dtype)).float() - batch.sin()).square().mean()


def step(engine: Any, number: int, factor: float = 1.0) -> None:
    engine.backward(loss_of(engine, number) * factor)
    engine.step()


def assert_replicas(model: torch.nn.Module) -> None:
    flat = torch.cat([parameter.detach().float().view(-1) for parameter in model.parameters()])
    everywhere = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, flat)
    assert all(bits(other) == bits(flat) for other in everywhere)


def parameters(model: torch.nn.Module) -> list[bytes]:
    return [bits(parameter) for parameter in model.parameters()]


# How it is handed over.


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_way_to_hand_it_over_gives_the_same_bits(optimizer: str, dtype: str) -> None:
    make, options = getattr(comp, optimizer), params(optimizer)
    clients = {"instance": (make, options), "callable": lambda given: make(given, **options)}
    ways = [{"client": client} for client in clients.values()] + [{"written": optimizer.upper()}]
    expected = trained(optimizer=optimizer, dtype=dtype)
    for way in ways:
        assert trained(optimizer=None if "client" in way else optimizer, dtype=dtype, **way) == expected, way


def trained(**options: Any) -> list[bytes]:
    engine, model = made(**options)
    for number in range(STEPS):
        step(engine, number)
    return parameters(model)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_class_is_made_with_its_defaults(optimizer: str) -> None:
    engine, model = made(client=getattr(comp, optimizer))
    before = parameters(model)
    step(engine, 0)
    assert type(engine.optimizer) is getattr(comp, optimizer)
    assert engine.optimizer.deepspeed is engine
    assert all(one != other for one, other in zip(parameters(model), before, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_instance_resumes_with_its_residuals(optimizer: str, folder: Path) -> None:
    """It meets its engine before a checkpoint is loaded, not only at the first step."""
    client = (getattr(comp, optimizer), params(optimizer))
    engine, _ = made(client=client)
    for number in range(STEPS):
        if number == FREEZE + 2:
            engine.save_checkpoint(str(folder))
        step(engine, number)
    again, model = made(client=client)
    again.load_checkpoint(str(folder))
    for number in range(FREEZE + 2, STEPS):
        step(again, number)
    assert parameters(model) == parameters(engine.module)


# In every precision.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", FREEZING)
def test_ranks_are_equal_after_each_step_and_the_engine_stops_when_it_should(optimizer: str, dtype: str) -> None:
    """After as many steps of training in every precision, though wrappers call once before the first one."""
    engine, model = made(optimizer, dtype)
    before = loss_of(engine, 0)
    for number in range(20):
        assert engine.enable_backward_allreduce is (number < FREEZE)
        step(engine, number)
        assert_replicas(model)
    assert engine.skipped_steps == 0
    assert loss_of(engine, 0) < before


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", [1, FREEZE + 2], ids=["before the freeze", "after it"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loss_that_is_not_finite_on_one_rank(optimizer: str, at: int, dtype: str) -> None:
    """No step on any rank, and the engine counts it as skipped: its schedule of learning rates waits."""
    engine, model = made(optimizer, dtype, config={"scheduler": SCHEDULER})
    for number in range(at):
        step(engine, number)
    before, lr = parameters(model), engine.get_lr()
    step(engine, at, float("nan") if dist.get_rank() == 1 else 1.0)
    assert parameters(model) == before
    assert (engine.skipped_steps, engine.get_lr()) == (1, lr)
    step(engine, at + 1)
    assert parameters(model) != before
    assert engine.skipped_steps == 1
    assert_replicas(model)


@pytest.mark.right_since("0.19.8", "a norm is not looked at")
@pytest.mark.parametrize("at", [1, FREEZE + 2], ids=["before the freeze", "after it"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_finite_gradient_of_infinite_norm_on_one_rank(optimizer: str, at: int) -> None:
    """DeepSpeed's wrapper would skip the step on that rank alone, and the others would wait for it."""
    engine, model = made(optimizer, "bf16")
    for number in range(at):
        step(engine, number)
    before = parameters(model)
    engine.backward(loss_of(engine, at) * (1e30 if dist.get_rank() == 1 else 1.0))
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters() if parameter.grad is not None)
    engine.step()
    assert parameters(model) == before
    assert engine.skipped_steps == 1
    for number in range(at + 1, 12):  # ZeroOneAdam's ranks are equal again after a synchronisation
        step(engine, number)
    assert_replicas(model)


# What is said, and refused.


def test_fp16_at_stage_0_has_a_fault_of_deepspeeds_that_is_named() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made("OneBitAdam", "fp16")
    texts = [str(warning.message) for warning in caught if "gradwire" in warning.filename or "loss" in str(warning)]
    assert len([text for text in texts if "loss scale" in text]) == (dist.get_rank() == 0)
    if dist.get_rank() == 0:
        assert "Use bf16, or multiply the loss by engine.optimizer.loss_scale" in texts[0]


@pytest.mark.parametrize("way", ["ds.json", "instance", "class"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zero_is_refused_before_training(optimizer: str, way: str) -> None:
    zero = {"zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}
    make = getattr(comp, optimizer)
    client = {"ds.json": None, "instance": (make, {}), "class": make}[way]
    own = VERSION < (0, 19, 7) and way == "ds.json"  # then DeepSpeed refuses the name before it makes anything
    text = "not compatible with ZeRO" if own else f"{optimizer} averages momenta.*zero_optimization.stage is 1"
    with pytest.raises(AssertionError if own else ConfigError, match=text):
        made(optimizer if client is None else None, client=client, config=zero)
