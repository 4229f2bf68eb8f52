"""What a step costs: messages, memory, and the processor's time while it waits for others."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import Compression, HorovodTransport, NoCompression, OneBit, TopK
from support.horovod_training import assert_ranks_equal, filled, grad, loss, model, noise, train, wrapped
from torch import nn

pytestmark = pytest.mark.usefixtures("hvd")


Message = tuple[str, torch.dtype]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Kind and dtype of every collective of gradwire's."""
    started: list[Message] = []
    for kind in ("all_reduce", "all_gather", "all_to_all"):
        monkeypatch.setattr(HorovodTransport, kind, _noting(kind, started))
    return started


def _noting(kind: str, started: list[Message]) -> Callable[..., object]:
    original = getattr(HorovodTransport, kind)

    def noting(self: HorovodTransport, tensor: torch.Tensor, *rest: object) -> object:
        started.append((kind, tensor.dtype))
        return original(self, tensor, *rest)

    return noting


EXCHANGES = {
    "gather": [("all_gather", torch.uint8)],
    "two_phase": [("all_to_all", torch.uint8), ("all_gather", torch.uint8)],
}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_bucket_is_one_message_of_bytes_per_phase(exchange: str, messages: list[Message]) -> None:
    """148 tensors, as in a small transformer."""
    net = filled(nn.ModuleList(nn.Linear(6, 6) for _ in range(74)))
    compression = TopK(ratio=0.1, min_numel=8, exchange=exchange)
    optimizer = wrapped(net, compression)
    x = noise((2, 6), hvd.rank())
    for step in range(3):
        optimizer.zero_grad()
        messages.clear()
        torch.stack([layer(x).square().mean() for layer in net]).sum().backward()
        optimizer.step()
        assert_ranks_equal(net.parameters())
        # more than two ranks ask for hosts, then all compare what they are about to do
        first = [("all_gather", torch.uint8)] * (2 if hvd.size() > 2 else 1) if step == 0 else []
        assert messages == first + EXCHANGES[exchange]
    assert len(compression.statistics.buckets) == 1
    assert len(compression.statistics.tensors) == 148


def test_without_compression_a_bucket_is_one_all_reduce(messages: list[Message]) -> None:
    net = filled(nn.ModuleList(nn.Linear(6, 6) for _ in range(74)))
    optimizer = wrapped(net, NoCompression())
    for _ in range(2):
        optimizer.zero_grad()
        messages.clear()
        torch.stack([layer(noise((2, 6), hvd.rank())).square().mean() for layer in net]).sum().backward()
        optimizer.step()
    assert messages == [("all_reduce", torch.float32)]


def test_statistics_over_some_steps() -> None:
    net = model()
    compression = TopK(ratio=0.2, min_numel=8, exchange="gather")
    optimizer = wrapped(net, compression)
    sent = []
    for step in range(4):
        optimizer.zero_grad()
        loss(net, step).backward()
        optimizer.step()
        sent.append(compression.statistics.last.sent_bytes)
    statistics, size = compression.statistics, hvd.size()
    assert statistics.steps == 4
    assert statistics.skipped_steps == 0
    assert len(set(sent)) == 1
    assert statistics.total.sent_bytes == sum(sent)
    payload = sum(tensor.payload_bytes for tensor in statistics.tensors)
    assert sent[0] >= payload * (size - 1)
    assert sent[0] <= (payload + 8 * len(statistics.tensors) + 64) * (size - 1)
    raw = 4 * sum(parameter.numel() for parameter in net.parameters())
    assert statistics.last.raw_bytes == 2 * raw * (size - 1) // size
    assert statistics.last.fp16_bytes == raw * (size - 1) // size
    assert "compressing 2 of 4 tensors" in statistics.summary()


def storages() -> int:
    """Bytes in all tensors that Python knows, each storage once."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.layout == torch.strided:
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@pytest.mark.parametrize(
    ("groups", "set_to_none"), [(None, True), (1, False)], ids=["hooks, new gradients", "group, zeroed gradients"]
)
def test_memory_does_not_grow(groups: int | None, set_to_none: bool) -> None:
    layer = filled(nn.Linear(64, 64))
    optimizer = wrapped(layer, OneBit(block=64), groups=groups)
    sizes = []
    for step in range(20):
        layer.zero_grad(set_to_none=set_to_none)
        layer(noise((2, 64), step, hvd.rank())).square().mean().backward()
        optimizer.step()
        if step in (3, 19):
            sizes.append(storages())
    assert_ranks_equal(layer.parameters())
    assert sizes[1] <= sizes[0] + 3 * layer.weight.nbytes


@pytest.mark.parametrize("compression", [NoCompression, OneBit], ids=lambda factory: factory.__name__)
def test_a_gradient_that_the_user_holds_stays_the_gradient(compression: Callable[..., Compression]) -> None:
    layer = filled(nn.Linear(64, 64, bias=False))
    optimizer = wrapped(layer, compression())
    layer(noise((2, 64), 0, hvd.rank())).square().mean().backward()
    held = grad(layer.weight)
    optimizer.step()
    assert held is layer.weight.grad
    copy = held.clone()
    optimizer.zero_grad()
    for step in range(1, 3):
        layer(noise((2, 64), step, hvd.rank())).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(held, copy)


def late_by(pause: float, groups: int | None) -> float:
    """The processor's seconds of the second step, before which this rank sleeps."""
    net = model()
    optimizer = wrapped(net, TopK(ratio=0.2, min_numel=8), groups=groups)
    train(net, optimizer, range(1))
    optimizer.zero_grad()
    time.sleep(pause)
    loss(net, 1).backward()
    begun = time.thread_time()
    optimizer.step()
    return time.thread_time() - begun


def call_late_by(pause: float) -> float:
    compression = TopK(ratio=0.2, min_numel=0)
    hvd.allreduce(noise((8, 8)), name="slow", compression=compression)
    time.sleep(pause)
    begun = time.thread_time()
    hvd.allreduce(noise((8, 8)), name="slow", compression=compression)
    return time.thread_time() - begun


WAYS: dict[str, Callable[[float], float]] = {
    "hooks": lambda pause: late_by(pause, None),
    "group": lambda pause: late_by(pause, 1),
    "call": call_late_by,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_waiting_leaves_the_processor_to_others(way: Callable[[float], float]) -> None:
    """The last rank comes a second late. Horovod's own wait would keep a core busy all the while."""
    last = hvd.rank() == hvd.size() - 1
    busy = way(1.0 if last else 0.0)
    if not last:
        assert busy < 0.5
