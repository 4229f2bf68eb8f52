"""Every exchange over a real transport: the same, bit for bit, as among ranks that are threads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gradwire import Compressor, ConfigError, Int8, OneBit, TopK
from gradwire.backends import GradientReducer, Transport, run_ranks

from .reducing import SHAPES, assert_ranks_equal, everything, metas, one_step

__all__ = ["CASES", "check_exchange"]

#: exchange and codec
CASES: list[tuple[str, Compressor]] = [
    ("auto", TopK(ratio=0.1)),
    ("sparse", TopK(ratio=0.1, values="int8")),
    ("two_phase", OneBit(block=64)),
    ("hierarchical", TopK(ratio=0.1)),
    ("hierarchical", Int8(block=32)),
]


def check_exchange(transport: Transport, exchange: str, codec: Compressor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps, with the ranks on two emulated hosts where there are enough of them."""
    world = transport.world_size
    hosts = [rank * 2 // world for rank in range(world)] if world % 2 == 0 else [0] * world
    monkeypatch.setattr(transport, "host", hosts[transport.rank])
    if exchange == "hierarchical" and (world < 4 or world % 2):
        with pytest.raises(ConfigError, match="needs two hosts or more with as many ranks each"):
            _steps(transport, exchange, codec)
        return
    given = _steps(transport, exchange, codec)
    expected = run_ranks(world, lambda local: _steps(local, exchange, codec), hosts=hosts)
    assert_ranks_equal([given, *expected])


def _steps(transport: Transport, exchange: str, codec: Compressor) -> Sequence[dict[str, torch.Tensor]]:
    name = f"{exchange}.{type(codec).__name__}"
    reducer = GradientReducer(everything(codec), transport, exchange=exchange, name=name, bucket_bytes=6000)
    reducer.register(metas(SHAPES))
    return [one_step(reducer, SHAPES, step, donate=step == 1) for step in range(3)]
