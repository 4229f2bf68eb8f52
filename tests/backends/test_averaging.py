"""A mean is taken once: known gradients, known results."""

from __future__ import annotations

import pytest
import torch
from gradwire import BF16, FP16, Compressor, ErrorFeedback, Int8, NoCompression, RandomK, TopK
from gradwire.backends import GradientReducer, Transport, run_ranks
from gradwire.backends import reducer as reducer_module
from support.reducing import assert_ranks_equal, everything, gradient, ids, metas

#: sends everything; the default policy would call that "no saving" and send it dense
LOSSLESS = ErrorFeedback(TopK(ratio=1.0))
EXCHANGES = ("gather", "two_phase")


def mean_of(
    gradients: list[torch.Tensor], compressor: Compressor, exchange: str = "auto", scale: float = 1.0
) -> tuple[torch.Tensor, float]:
    """The mean, and the largest magnitude that any rank still owes."""

    def rank_main(transport: Transport) -> tuple[torch.Tensor, float]:
        reducer = GradientReducer(compressor, transport, exchange=exchange)
        grad = gradients[transport.rank]
        reducer.register(metas({"w": tuple(grad.shape)}, grad.dtype))
        reducer.ready("w", grad)
        mean = reducer.wait("w", scale)
        return mean, float(reducer.pending("w").abs().max())

    ranks = run_ranks(len(gradients), rank_main)
    assert_ranks_equal([[{"w": mean}] for mean, _ in ranks])
    return ranks[0][0], max(owed for _, owed in ranks)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_lossless_codec_averages_exactly_once(
    world_size: int, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constant 1.0: the mean is 1, the sum the world size, and nothing is owed."""
    monkeypatch.setattr(reducer_module, "with_defaults", lambda compressor: compressor)
    ones = [torch.ones(30, 40) for _ in range(world_size)]
    for scale in (1.0, float(world_size)):
        mean, owed = mean_of(ones, LOSSLESS, exchange, scale)
        torch.testing.assert_close(mean, torch.full((30, 40), scale), rtol=1e-6, atol=0)
        assert owed == 0


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_peaks_at_different_places_both_arrive(exchange: str) -> None:
    """Top-1, rank 0's peak at index 0 and rank 1's at index 9. Two-phase: in two shards, each with its own top-1."""
    one, two = torch.zeros(10), torch.zeros(10)
    one[0], two[9] = 8.0, -6.0
    mean, _ = mean_of([one, two], everything(TopK(ratio=0.1)), exchange)
    assert mean.tolist() == [4.0, 0, 0, 0, 0, 0, 0, 0, 0, -3.0]


def test_repeated_indices_are_added() -> None:
    one, two = torch.zeros(10), torch.zeros(10)
    one[4], two[4] = 1.0, 2.0
    mean, _ = mean_of([one, two], everything(TopK(ratio=0.1)), "gather")
    assert mean[4] == 1.5


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("value", [127.0, -127.0, 1.0])
def test_int8_at_its_limit_on_four_ranks_is_exact(value: float, exchange: str) -> None:
    """A sum in int8 would wrap around."""
    mean, owed = mean_of([torch.full((600,), value)] * 4, everything(Int8()), exchange)
    torch.testing.assert_close(mean, torch.full((600,), value), rtol=1e-6, atol=0)
    assert owed <= 1e-6 * abs(value)


@pytest.mark.parametrize("exchange", ["auto", *EXCHANGES])
@pytest.mark.parametrize("compressor", [FP16(), BF16(), FP16(error_feedback=True)], ids=ids)
def test_16_bit_sums_never_overflow(compressor: Compressor, exchange: str) -> None:
    """40000 on each rank: two of them are beyond fp16 already. 65504 is the largest number it has."""
    rtol = 1 / 64 if isinstance(compressor, BF16) else 1 / 512
    for world_size in range(2, 10) if exchange == "auto" else (2, 3, 9):
        for value in (40000.0, -65504.0):
            mean, _ = mean_of([torch.full((64,), value)] * world_size, everything(compressor), exchange)
            torch.testing.assert_close(mean, torch.full((64,), value), rtol=rtol, atol=0)


def test_beyond_the_range_of_fp16_values_saturate_and_are_counted() -> None:
    def rank_main(transport: Transport) -> int:
        reducer = GradientReducer(FP16(), transport)
        reducer.register(metas({"w": (64,)}))
        for _ in range(2):
            reducer.ready("w", torch.full((64,), 1e6 if transport.rank == 0 else 1.0))
            assert torch.isfinite(reducer.wait("w")).all()
        return reducer.statistics.saturated

    assert run_ranks(2, rank_main) == [128, 0]


SAMPLES = [gradient("sample", (40, 50), number, 0) for number in range(12)]


@pytest.mark.parametrize(
    "compressor",
    [NoCompression(), FP16(), RandomK(ratio=0.1), RandomK(ratio=0.1, error_feedback=False)],
    ids=ids,
)
def test_linear_codecs_do_not_depend_on_how_samples_are_split(compressor: Compressor) -> None:
    """The same 12 samples over 1 to 4 ranks. One rank alone compresses nothing, so it gives the exact mean."""
    exact = torch.stack(SAMPLES).mean(0)
    results = [exact, *(mean_of(split(world_size), everything(compressor))[0] for world_size in (2, 3, 4))]
    if isinstance(compressor, RandomK):
        sent = results[1] != 0
        assert int(sent.sum()) == 200
        results[0] = torch.where(sent, exact * (1 if compressor.error_feedback else 10), 0.0)
    rtol = 1e-3 if isinstance(compressor, FP16) else 1e-5
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=rtol, atol=rtol)


def split(world_size: int) -> list[torch.Tensor]:
    share = len(SAMPLES) // world_size
    return [torch.stack(SAMPLES[rank * share : (rank + 1) * share]).mean(0) for rank in range(world_size)]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_other_codecs_stay_within_their_bound_however_samples_are_split(exchange: str) -> None:
    """int8: half a level on each way, and a level is at most the largest magnitude / 127."""
    exact = torch.stack(SAMPLES).mean(0)
    for world_size in (2, 3, 4):
        parts = split(world_size)
        level = max(float(part.abs().max()) for part in parts) / 127
        ways = 2 if exchange == "two_phase" else 1
        mean, _ = mean_of(parts, everything(Int8()), exchange)
        assert float((mean - exact).abs().max()) <= 1.01 * ways * level / 2
