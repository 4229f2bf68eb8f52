"""Parameter by parameter, from backward's hooks: every compressor by every exchange."""

from __future__ import annotations

from collections.abc import Callable

import gradwire
import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import BF16, FP16, Compression, Int8, NoCompression, OneBit, RandomK, TopK
from support.horovod_training import RATE, loss, model, noise, oracle, reducers, train, values, wrapped

pytestmark = pytest.mark.usefixtures("hvd")

COMPRESSORS = {
    "none": gradwire.NoCompression(),
    "fp16": gradwire.FP16(),
    "bf16": gradwire.BF16(),
    "top-k": gradwire.TopK(ratio=0.2),
    "top-k of fp16": gradwire.TopK(ratio=0.2, values=gradwire.FP16()),
    "top-k of int8": gradwire.TopK(ratio=0.2, values=gradwire.Int8(block=16)),
    "top-k of 2 bits, sampled": gradwire.TopK(ratio=0.2, values="twobit:block=16", sampled=True),
    "random-k": gradwire.RandomK(ratio=0.2),
    "1 bit": gradwire.OneBit(block=16),
    "int8": gradwire.Int8(block=16),
    "int4": gradwire.Int4(block=16),
    "fp8": gradwire.FP8(block=16),
    "2 bits": gradwire.TwoBit(block=16),
}


@pytest.mark.parametrize("exchange", ["auto", "gather", "two_phase"])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_equals_the_same_job_in_one_process(name: str, exchange: str) -> None:
    compressor = gradwire.with_defaults(COMPRESSORS[name], 8)
    net = model()
    compression = Compression(COMPRESSORS[name], min_numel=8, exchange=exchange)
    train(net, wrapped(net, compression), range(3))
    expected = oracle(compressor, 3, hvd.size(), exchange=exchange)
    if hvd.size() == 2 or all(exchange.bucket.lane.kind != "all_reduce" for exchange in _exchanges(compression)):
        assert torch.equal(values(net), expected)
    else:  # Horovod adds in another order
        torch.testing.assert_close(values(net), expected, rtol=1e-3, atol=1e-3 if name == "fp16" else 1e-5)


def _exchanges(compression: Compression) -> list:
    return [exchange for reducer in reducers(compression) for exchange in reducer._registry.exchanges]


def test_error_feedback_top_k_as_the_paper_writes_it() -> None:
    """1809.07599 in four lines per rank; nothing of the reducer takes part."""
    size, lr = hvd.size(), RATE
    weight = torch.zeros(10, 9)
    memory = [torch.zeros(90) for _ in range(size)]
    layer = torch.nn.Linear(9, 10, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer = wrapped(layer, TopK(ratio=0.1, min_numel=8))
    for step in range(5):
        mean = torch.zeros(90)
        for rank in range(size):
            total = noise((10, 9), step, rank).reshape(-1) + memory[rank]
            kept = torch.zeros(90)
            top = total.abs().topk(9).indices
            kept[top] = total[top]
            memory[rank] = total - kept
            mean += kept / size
        weight -= lr * mean.view(10, 9)

        optimizer.zero_grad()
        (layer.weight * noise((10, 9), step, hvd.rank())).sum().backward()
        optimizer.step()
        torch.testing.assert_close(layer.weight.detach(), weight, rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    "factory", [NoCompression, FP16, BF16, TopK, RandomK, OneBit, Int8], ids=lambda factory: factory.__name__
)
def test_every_default_trains_a_layer_that_it_compresses(factory: Callable[..., Compression]) -> None:
    """40 x 50 is above the default `min_numel`; at 1 % of the entries, 12 steps come a short way."""
    target = noise((40, 50), "target")
    layer = torch.nn.Linear(50, 40, bias=False)
    torch.nn.init.zeros_(layer.weight)
    compression = factory()
    optimizer = wrapped(layer, compression)
    for step in range(12):
        optimizer.zero_grad()
        (layer.weight - target - 0.1 * noise((40, 50), step, hvd.rank())).square().sum().mul(0.5).backward()
        optimizer.step()
    assert (layer.weight.detach() - target).norm() < target.norm()
    assert (compression.statistics.tensors[0].dense_reason is None) == (factory is not NoCompression)


def test_lossless_settings_equal_stock_horovod() -> None:
    stock, none, sparse = model(), model(), model()
    train(stock, wrapped(stock, hvd.Compression.none), range(5))
    train(none, wrapped(none, NoCompression()), range(5))
    train(sparse, wrapped(sparse, TopK(ratio=1.0, min_numel=0, exchange="gather")), range(5))
    torch.testing.assert_close(values(none), values(stock), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(values(sparse), values(stock), rtol=1e-5, atol=1e-6)


def test_the_random_numbers_of_the_training_are_left_alone() -> None:
    net = model()
    optimizer = wrapped(net, RandomK(ratio=0.2, min_numel=8))
    before = torch.get_rng_state()
    for step in range(2):
        optimizer.zero_grad()
        loss(net, step).backward()
        optimizer.step()
    assert torch.equal(torch.get_rng_state(), before)
