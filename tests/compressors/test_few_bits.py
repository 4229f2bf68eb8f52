"""Four bits, floats of eight bits, two bits, and thresholds by samples: how near they come, and what they cost."""

from __future__ import annotations

import pytest
import torch
from gradwire import FP8, Compressor, Int4, OneBit, TopK, TwoBit
from gradwire.compressors.kernels import indices_of, sparse_indices
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import Case, cases, context, make_values

KINDS = ("normal", "heavy", "spike", "ties")


def through(codec: Compressor, x: torch.Tensor, **options: int) -> torch.Tensor:
    payload = codec.compress(x, {}, context(x, **options)).payload
    return codec.decompress(payload, context(x, **options))


@given(case=cases(dtypes=(torch.float32,), values=KINDS), stochastic=st.booleans())
def test_int4_error_is_within_one_level(case: Case, stochastic: bool) -> None:
    codec = Int4(block=64, stochastic=stochastic)
    flat = case.flat
    left = (through(codec, flat) - flat).abs()
    for part, block in zip(left.split(64), flat.split(64), strict=True):
        scale = float(block.abs().max()) / 7
        assert float(part.max()) <= scale * (1.0 if stochastic else 0.5) * 1.0001


def test_int4_keeps_its_own_levels_two_in_a_byte() -> None:
    x = torch.arange(-7, 8).float() * 0.5
    assert torch.allclose(through(Int4(), x), x, rtol=1e-6)
    payload = Int4().compress(x, {}, context(x)).payload
    assert payload[4:].tolist() == [(low & 15) | (low + 1 & 15) << 4 for low in range(-7, 7, 2)] + [7]


def test_int4_rounded_at_random_has_the_right_mean() -> None:
    x = torch.tensor([7.0, 0.25, -0.5, 3.75])
    decoded = torch.stack([through(Int4(stochastic=True), x, step=step) for step in range(4000)])
    assert torch.allclose(decoded.mean(dim=0), x, atol=0.05)


@pytest.mark.parametrize(("form", "bits", "least"), [("e4m3", 3, 2.0**-6 / 448), ("e5m2", 2, 2.0**-14 / 57344)])
@given(case=cases(dtypes=(torch.float32,), values=("normal", "spike", "ties")))
def test_fp8_error_is_relative_down_to_the_smallest_normal_number(
    form: str, bits: int, least: float, case: Case
) -> None:
    flat = case.flat
    left = (through(FP8(format=form, block=64), flat) - flat).abs()
    for part, block in zip(left.split(64), flat.split(64), strict=True):
        most = float(block.abs().max())
        allowed = torch.maximum(block.abs(), torch.tensor(most * least)) * 2.0 ** -(bits + 1)
        assert bool((part <= allowed * 1.0001).all())


def test_fp8_keeps_small_elements_of_a_block_where_int4_drops_them() -> None:
    x = torch.tensor([100.0, 1.0, 0.1])
    assert torch.allclose(through(FP8(), x), x, rtol=0.07)
    assert through(Int4(), x).tolist()[1:] == [0.0, 0.0]


@given(case=cases(dtypes=(torch.float32,)), block=st.sampled_from([4, 64, 256]))
def test_two_bits_are_a_contraction_and_lose_less_than_one(case: Case, block: int) -> None:
    x = case.flat.double()
    left = float((x - through(TwoBit(block=block), case.flat).double()).norm())
    assert left <= float(x.norm()) * 1.000001
    if block % 8 == 0:
        assert left <= float((x - through(OneBit(block=block), case.flat).double()).norm()) * 1.000001 + 1e-37


def test_two_bits_keep_values_of_two_magnitudes() -> None:
    x = torch.tensor([1.0, -1.0, 3.0, -3.0, 1.0])
    assert torch.equal(through(TwoBit(), x), x)


@pytest.mark.parametrize("kind", ["normal", "heavy", "spike", "ties"])
@pytest.mark.parametrize("ratio", [0.01, 0.1])
def test_samples_find_most_of_the_largest_and_never_too_many(kind: str, ratio: float) -> None:
    x = make_values(kind, 1 << 20, seed=1)
    codec = TopK(ratio=ratio, sampled=True)
    k = codec.entries(context(x).meta)
    places = sparse_indices(codec.compress(x, {}, context(x)).payload, x.numel(), k, False)
    exact = sparse_indices(TopK(ratio=ratio).compress(x, {}, context(x)).payload, x.numel(), k)
    assert places.numel() <= k
    if kind in ("normal", "heavy"):
        assert places.numel() >= 0.7 * k
        assert bool(torch.isin(places, exact).all())


def test_a_sampled_payload_is_as_long_as_an_exact_one_but_for_counts() -> None:
    meta = context(torch.empty(1 << 20)).meta
    assert TopK(sampled=True).nbytes(meta) == TopK().nbytes(meta)
    assert indices_of(1 << 20, 3, exact=False).chunks > 0
