"""What a step keeps: one fp32 residual per tensor and nothing else of the model's size."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass

import pytest
import torch
from gradwire import Compressor, Context, Int8, OneBit, RandomK, State, TensorMeta, TopK
from gradwire.backends import GradientReducer, Transport, run_ranks
from gradwire.backends import reducer as reducer_module
from gradwire.compressors.base import Encoded
from gradwire.compressors.kernels import Feed
from gradwire.compressors.memory import RESIDUAL
from support.allocating import Allocations
from support.reducing import gradient, ids, metas

SHAPE = (256, 1024)
NBYTES = 4 * 256 * 1024
CODECS: list[Compressor] = [TopK(ratio=0.01), OneBit(), Int8(), RandomK(ratio=0.01)]


def play(reducer: GradientReducer, step: int) -> torch.Tensor:
    reducer.ready("w", gradient("w", SHAPE, reducer.transport.rank, step), donate=True)
    return reducer.wait("w")


@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
@pytest.mark.parametrize("compressor", CODECS, ids=ids)
def test_gradient_residual_and_mean_swap_their_storages(compressor: Compressor, exchange: str) -> None:
    """The given-away gradient becomes the residual; the old residual's storage receives the mean."""

    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(compressor, transport, exchange=exchange)
        reducer.register(metas({"w": SHAPE}))
        play(reducer, 0)
        for step in (1, 2, 3):
            old = reducer._states["w"][RESIDUAL].data_ptr()
            grad = gradient("w", SHAPE, transport.rank, step)
            reducer.ready("w", grad, donate=True)
            assert reducer.wait("w").data_ptr() == old
            assert reducer._states["w"][RESIDUAL].data_ptr() == grad.data_ptr()

    run_ranks(3, rank_main)


@dataclass(frozen=True, kw_only=True)
class Drain(Compressor):
    """Sends its residual as it stands, and hands it back; the gradient only sets it in the first step."""

    @property
    def elementwise_state(self) -> frozenset[str]:
        return frozenset({RESIDUAL})

    def nbytes(self, meta: TensorMeta) -> int:
        return meta.raw_bytes

    def _encode(self, feed: Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        kept = state.get(RESIDUAL, feed.x.clone())
        payload.view(torch.float32).copy_(kept)
        return {RESIDUAL: kept}, True

    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        out.add_(payload.view(torch.float32), alpha=weight)


def test_a_residual_handed_back_unchanged_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reducer_module, "with_defaults", lambda compressor: compressor)  # it would travel dense

    def rank_main(transport: Transport) -> torch.Tensor:
        reducer = GradientReducer(Drain(), transport)
        reducer.register(metas({"w": (8,)}))
        for _ in range(3):
            reducer.ready("w", torch.full((8,), 1.0 + transport.rank))
            assert reducer.wait("w").tolist() == [1.5] * 8
        return reducer._states["w"][RESIDUAL]

    first, second = run_ranks(2, rank_main)
    assert first.tolist() == [1.0] * 8
    assert second.tolist() == [2.0] * 8


def large_storages() -> int:
    """Live storages of the gradient's size or more, whichever thread made them."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if type(found) is torch.Tensor and found.device.type == "cpu"]
    return len({t.untyped_storage().data_ptr() for t in tensors if t.untyped_storage().nbytes() >= NBYTES // 4})


@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
@pytest.mark.parametrize("compressor", [TopK(ratio=0.01), OneBit()], ids=ids)
def test_between_steps_one_residual_per_rank_is_alive(compressor: Compressor, exchange: str) -> None:
    """Two-phase: and the residual of the rank's shard, which is what counts here from a quarter of the size on."""
    world_size = 3
    before = large_storages()
    together = threading.Barrier(world_size, timeout=60)

    def rank_main(transport: Transport) -> int:
        reducer = GradientReducer(compressor, transport, exchange=exchange)
        reducer.register(metas({"w": SHAPE}))
        for step in range(3):
            play(reducer, step)
        together.wait()
        alive = large_storages() if transport.rank == 0 else 0
        together.wait()
        assert reducer.step == 3
        return alive

    residuals = world_size * (2 if exchange == "two_phase" else 1)
    assert run_ranks(world_size, rank_main)[0] - before == residuals


@pytest.mark.parametrize("compressor", CODECS, ids=ids)
def test_decoding_many_ranks_makes_nothing_of_the_tensors_size(compressor: Compressor) -> None:
    """Work goes in pieces of a fixed size, so the tensor has several: the mean needs no dense temporary per rank."""
    shape = (1024, 1024)

    def rank_main(transport: Transport) -> int:
        reducer = GradientReducer(compressor, transport, exchange="gather")
        reducer.register(metas({"w": shape}))
        allocations = Allocations()
        for step in range(2):
            reducer.ready("w", gradient("w", shape, transport.rank, step), donate=True)
            reducer.flush()
            allocations.sizes.clear()  # the first step has no old residual whose storage could serve
            with allocations:
                reducer.wait("w")
        return allocations.largest

    payload = sum(t.payload_bytes for t in statistics_of(compressor, shape))
    for largest in run_ranks(4, rank_main):
        assert largest <= max(4 * payload + 4096, 4 * 1024 * 1024 // 2)


def statistics_of(compressor: Compressor, shape: tuple[int, ...]) -> tuple:
    def rank_main(transport: Transport) -> tuple:
        reducer = GradientReducer(compressor, transport, exchange="gather")
        reducer.register(metas({"w": shape}))
        return reducer.statistics.tensors

    return run_ranks(2, rank_main)[0]
