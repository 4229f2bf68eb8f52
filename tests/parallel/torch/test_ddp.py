"""Compressed gradients for a stock DistributedDataParallel: what everybody relies on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradwire import FP16, Compressor, Int8, NoCompression, OneBit, RandomK, TopK
from gradwire.backends import ddp, registry
from gradwire.backends.torch_dist import TorchTransport
from support.ddp_training import (
    Net,
    assert_equal,
    assert_nothing_is_lost,
    assert_ranks_equal,
    grads,
    loss_of,
    mean_grads,
    train,
    wrapped,
)
from torch import nn

pytestmark = pytest.mark.usefixtures("transport")

CODECS: list[Compressor] = [
    TopK(ratio=0.1),
    TopK(ratio=0.2, values="int8"),
    OneBit(block=64),
    Int8(block=64),
    RandomK(ratio=0.2),
    FP16(error_feedback=True),
]
WAYS: list[dict[str, Any]] = [
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"static_graph": True, "gradient_as_bucket_view": True},
]


@pytest.fixture(autouse=True)
def _threads_for_little_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "WORTH_A_THREAD", 1)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_without_compression_it_is_the_stock_model(way: dict[str, Any]) -> None:
    stock, ours = wrapped(**way), wrapped(**way)
    compression = ddp.compress(ours, NoCompression())
    train(stock, range(5))
    train(ours, range(5))
    for name, parameter in ours.module.named_parameters():
        torch.testing.assert_close(parameter, stock.module.get_parameter(name))
    assert compression.statistics.steps == 5


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_is_given_and_what_is_owed_is_the_mean(codec: Compressor, way: dict[str, Any]) -> None:
    model = wrapped(**way)
    compression = ddp.compress(model, codec, min_numel=8, bucket_bytes=20000)
    assert_nothing_is_lost(model, compression, range(10))
    assert_ranks_equal(model.parameters())
    assert_ranks_equal(grads(model).values())
    assert compression.statistics.steps == 10
    assert compression.statistics.total.sent_bytes == 10 * compression.statistics.last.sent_bytes


@pytest.mark.parametrize("exchange", ["gather", "two_phase", "sparse"])
def test_every_exchange(exchange: str) -> None:
    model = wrapped()
    compression = ddp.compress(model, TopK(ratio=0.2), exchange=exchange, bucket_bytes=20000, overlap=False)
    assert_nothing_is_lost(model, compression, range(4))
    assert_ranks_equal(model.parameters())
    assert {bucket.exchange for bucket in compression.statistics.buckets} == {exchange}


def held_out(model: nn.Module) -> float:
    """Equal on all ranks."""
    with torch.no_grad():
        return sum(loss_of(model, step, 0).item() for step in range(1000, 1020)) / 20


def test_it_compresses_from_the_first_step_on_and_learns_as_the_stock_model_does() -> None:
    stock, ours = wrapped(), wrapped()
    compression = ddp.compress(ours, TopK(ratio=0.1), exchange="sparse")
    train(ours, range(1))
    assert compression.statistics.last.sent_bytes < 0.3 * compression.statistics.last.raw_bytes
    before = held_out(ours)
    train(ours, range(1, 150))
    train(stock, range(150))
    assert before - held_out(ours) > 0.8 * (before - held_out(stock)) > 0.05
    assert_ranks_equal(ours.parameters())


def test_residuals_do_not_depend_on_the_buckets_of_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes new ones after the first step, and of other sizes here."""
    counts: list[int] = []
    hook = ddp._hook

    def counted(compression, bucket):  # noqa: ANN001, ANN202 - as the hook itself
        counts.extend([bucket.index() + 1] if bucket.is_last() else [])
        return hook(compression, bucket)

    monkeypatch.setattr(ddp, "_hook", counted)
    models = [wrapped(cap=cap) for cap in (0.01, 25.0)]
    compressions = [ddp.compress(model, TopK(ratio=0.1), min_numel=8) for model in models]
    for model in models:
        train(model, range(6))
    few, many = sorted({*counts})
    assert counts == [few, *[many] * 5, *[few] * 6]
    assert_equal(*models)
    for name, _ in models[0].module.named_parameters():
        assert torch.equal(*(compression.pending(name) for compression in compressions))


def test_gradients_that_are_accumulated_travel_once() -> None:
    model = wrapped()
    compression = ddp.compress(model, NoCompression())
    with model.no_sync():
        loss_of(model, 0, dist.get_rank()).backward()
    assert compression.statistics.steps == 0
    loss_of(model, 0, dist.get_rank()).backward()
    for name, mean in mean_grads(model.module, 0).items():
        torch.testing.assert_close(grads(model)[name], 2 * mean)
    assert compression.statistics.steps == 1


def metric(step: int) -> None:
    dist.all_reduce(torch.ones(step + 1))


def test_models_side_by_side_and_the_users_own_collectives() -> None:
    """Each model's exchanges have a group of their own, so that what comes in between does not matter."""
    models = [wrapped(Net(seed)) for seed in (1, 2)]
    compressions = [ddp.compress(model, codec, min_numel=8) for model, codec in zip(models, CODECS[:2], strict=True)]
    alone = [wrapped(Net(seed)) for seed in (1, 2)]
    for model, codec in zip(alone, CODECS[:2], strict=True):
        ddp.compress(model, codec, min_numel=8)
        train(model, range(4))
    for step in range(4):
        for model in models if step % 2 else reversed(models):
            train(model, [step], metric)
        sums = torch.ones(3)
        dist.all_reduce(sums)
        assert sums.tolist() == [dist.get_world_size()] * 3
    for model, single in zip(models, alone, strict=True):
        assert_equal(model, single)
    assert [compression.statistics.steps for compression in compressions] == [4, 4]


def test_a_collective_of_the_users_within_backward() -> None:
    """On the default group, while exchanges are under way; ranks start theirs at different moments."""
    model, single = wrapped(), wrapped()
    for one in (model, single):
        ddp.compress(one, TopK(ratio=0.1), min_numel=8, bucket_bytes=5000)
    model.module.second.register_full_backward_hook(lambda *_: metric(2))
    train(model, range(4))
    train(single, range(4))
    assert_equal(model, single)


def test_two_models_in_one_backward() -> None:
    models = [wrapped(Net(seed)) for seed in (1, 2)]
    compressions = [ddp.compress(model, NoCompression(), bucket_bytes=5000) for model in models]
    for step in range(3):
        for model in models:
            model.zero_grad()
        losses = [loss_of(model, step, dist.get_rank()) for model in models]
        torch.stack(losses).sum().backward()
        for model in models:
            for name, mean in mean_grads(model.module, step).items():
                torch.testing.assert_close(grads(model)[name], mean)
    assert [compression.statistics.steps for compression in compressions] == [3, 3]


@pytest.mark.parametrize("codec", CODECS[:3], ids=str)
def test_a_step_that_is_not_finite_is_refused_on_all_ranks(codec: Compressor) -> None:
    model = wrapped()
    compression = ddp.compress(model, codec, min_numel=8)
    train(model, range(2))
    owed = {name: compression.pending(name) for name, _ in model.module.named_parameters()}
    model.zero_grad()
    (loss_of(model, 2, dist.get_rank()) * (float("inf") if dist.get_rank() == 0 else 1.0)).backward()
    assert all(gradient.isnan().all() for gradient in grads(model).values())
    assert all(torch.equal(compression.pending(name), before) for name, before in owed.items())
    train(model, range(3, 5))
    assert (compression.statistics.steps, compression.statistics.skipped_steps) == (4, 1)
    assert_ranks_equal(model.parameters())


def test_a_model_of_some_ranks_only(transport: TorchTransport) -> None:
    others = dist.new_group([0])
    if transport.rank == 0:
        model = wrapped(process_group=others)
        compression = ddp.compress(model, TopK(ratio=0.2))
        train(model, range(2))
        assert compression.statistics.buckets[0].exchange == "identity"
    transport.barrier("all", 30)


def test_a_model_that_has_trained_already() -> None:
    """As after a warm-up without compression."""
    model = wrapped()
    train(model, range(3))
    compression = ddp.compress(model, TopK(ratio=0.2), min_numel=8)
    assert_nothing_is_lost(model, compression, range(3, 6))
    assert compression.statistics.steps == 3
