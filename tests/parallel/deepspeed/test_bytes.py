"""What torch.distributed is handed during backward is what the statistics say, and nothing besides."""

from __future__ import annotations

from collections import Counter
from typing import Any

import deepspeed.comm.comm
import pytest
import torch
import torch.distributed as dist
from gradwire import FP16, Compressor, OneBit, TopK
from support.zero import Terms, config, initialize, train

from .conftest import Attach

PATHS: dict[str, tuple[int, dict[str, Any]]] = {
    "0": (0, {}),
    "1": (1, {}),
    "1 owner by owner": (1, {"use_multi_rank_bucket_allreduce": False}),
    "2": (2, {}),
    "2 without reduce_scatter": (2, {"reduce_scatter": False}),
    "3": (3, {}),
    "3 without reduce_scatter": (3, {"reduce_scatter": False}),
}


class Wire:
    """Counts what this rank sends: a sum as a ring, and what goes to all others once for each of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: Counter[str] = Counter()
        others = dist.get_world_size() - 1
        world = dist.get_world_size()
        self._listen(monkeypatch, dist, "all_reduce", lambda tensor, **_: 2 * others * tensor.nbytes // world)
        self._listen(monkeypatch, dist, "reduce", lambda tensor, **_: others * tensor.nbytes // world)
        self._listen(monkeypatch, dist, "all_gather", lambda slots, tensor, *_, **__: others * tensor.nbytes)
        self._listen(monkeypatch, dist, "all_to_all_single", self._pieces)
        self._listen(
            monkeypatch,
            deepspeed.comm.comm.cdb,
            "reduce_scatter_function",
            lambda output, tensor, **_: others * output.nbytes,
        )

    def _pieces(self, output: torch.Tensor, tensor: torch.Tensor, received: Any, sizes: list[int], **_: Any) -> int:
        return sum(size for rank, size in enumerate(sizes) if rank != dist.get_rank())

    def _listen(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, size: Any) -> None:
        function = getattr(owner, name)

        def listening(*args: Any, **kwargs: Any) -> Any:
            self.sent[name] += size(*args, **kwargs)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, listening)


def backward(engine: Any, wire: Wire) -> Counter[str]:
    """What is sent for one batch; before the step, where DeepSpeed gathers parameters."""
    loss = engine(dist.get_rank())
    wire.sent.clear()
    engine.backward(loss)
    sent = +wire.sent
    engine.step()
    return sent


@pytest.mark.parametrize("compressor", [TopK(ratio=0.05), OneBit()], ids=repr)
@pytest.mark.parametrize("path", PATHS)
def test_bytes(path: str, compressor: Compressor, compress: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, zero = PATHS[path]
    plain, engine = (initialize(Terms(), config(stage, zero=zero)) for _ in range(2))
    attachment = compress(engine, compressor)
    train(engine, 1)  # buckets are agreed on
    wire = Wire(monkeypatch)
    dense, sent = backward(plain, wire), backward(engine, wire)
    statistics = attachment.statistics.last
    raw = 4 * sum(parameter.numel() for parameter in Terms().parameters())
    assert sum(dense.values()) >= raw * (dist.get_world_size() - 1) // dist.get_world_size()
    assert not sent.keys() & dense.keys()
    assert sum(sent.values()) == statistics.sent_bytes
    assert sum(sent.values()) < 0.25 * sum(dense.values())


@pytest.mark.parametrize("path", PATHS)
def test_sixteen_bits_are_half(path: str, compress: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, zero = PATHS[path]
    engine = initialize(Terms(), config(stage, zero=zero))
    attachment = compress(engine, FP16())
    train(engine, 1)
    sent = sum(backward(engine, Wire(monkeypatch)).values())
    assert sent == attachment.statistics.last.sent_bytes
    assert sent <= 0.55 * attachment.statistics.last.raw_bytes
