"""One bit and eight bits: the arithmetic of scales, blocks and levels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradwire import Compressor, Int8, OneBit
from gradwire.compressors.kernels.reference import sign
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import Case, as_bytes, cases, context, make_values

BLOCKED = [OneBit(block=8), OneBit(block=64), OneBit(block=256, scale="l2"), Int8(block=8), Int8(block=7), Int8()]


def through(codec: Compressor, x: torch.Tensor, **options: int) -> torch.Tensor:
    payload = codec.compress(x, {}, context(x, **options)).payload
    return codec.decompress(payload, context(x, **options))


def signs(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x >= 0, 1.0, -1.0).double()


@pytest.mark.parametrize("codec", BLOCKED, ids=repr)
@pytest.mark.parametrize("numel", [1, 6, 7, 8, 9, 63, 64, 65, 255, 257, 1009])
def test_blocks_do_not_see_each_other_and_padding_never_counts(codec: OneBit | Int8, numel: int) -> None:
    x = make_values("heavy", numel, seed=numel)
    assert codec.block is not None
    alone = torch.cat([through(codec, block) for block in x.split(codec.block)])
    assert torch.equal(through(codec, x), alone)


@pytest.mark.parametrize("numel", [2**18 - 1, 2**18, 2**18 + 1, 3 * 2**18 + 5])
@pytest.mark.parametrize("codec", [OneBit(block=2**19), OneBit(block=None), OneBit(), Int8(), Int8(block=2**19 + 1)])
def test_large_tensors_are_worked_on_in_pieces(codec: OneBit | Int8, numel: int) -> None:
    x = make_values("normal", numel, seed=numel)
    block = codec.block or numel
    for start in range(0, numel, block) if block > 10_000 else (0, numel // block * block - block):
        part = x[start : start + block].double()
        decoded = through(codec, x)[start : start + block].double()
        if isinstance(codec, OneBit):
            assert torch.allclose(decoded, signs(part) * part.abs().mean(), rtol=1e-6)
        else:
            assert float((decoded - part).abs().max()) <= float(part.abs().max()) / 254 * 1.0001


@given(case=cases(dtypes=(torch.float32,), values=("normal", "heavy", "constant", "ties")))
def test_one_bit_is_sign_times_mean_magnitude(case: Case) -> None:
    decoded = through(OneBit(block=None), case.x).double().reshape(-1)
    exact = signs(case.flat) * case.flat.double().abs().mean()
    assert torch.allclose(decoded, exact, rtol=1e-6)


@given(case=cases(dtypes=(torch.float32,), values=("normal", "heavy", "constant", "ties")))
def test_one_bit_l2_is_sign_times_root_mean_square(case: Case) -> None:
    decoded = through(OneBit(block=None, scale="l2"), case.x).double().reshape(-1)
    exact = signs(case.flat) * case.flat.double().square().mean().sqrt()
    assert torch.allclose(decoded, exact, rtol=1e-6)


@given(case=cases(dtypes=(torch.float32,)), block=st.sampled_from([8, 64, 2048, None]))
def test_one_bit_l1_is_a_contraction(case: Case, block: int | None) -> None:
    left = case.x.double() - through(OneBit(block=block), case.x).double()
    assert float(left.norm()) <= float(case.x.double().norm()) * 1.000001


@given(mask=st.lists(st.booleans(), min_size=1, max_size=200))
def test_bits_are_packed_alike_on_every_device(mask: list[bool]) -> None:
    packed = sign._pack_words(torch.tensor(mask))
    assert packed.tolist() == np.packbits(mask, bitorder="little").tolist()


def test_zero_counts_as_positive() -> None:
    x = torch.tensor([0.0, -0.0, 3.0, -3.0])
    assert through(OneBit(), x).tolist() == [1.5, 1.5, 1.5, -1.5]


def test_one_bit_costs_little_more_than_one_bit() -> None:
    meta = context(torch.empty(1000, 1000)).meta
    assert OneBit().nbytes(meta) * 8 <= 1.02 * meta.numel


def test_a_block_of_zeros_is_exact_beside_others() -> None:
    x = torch.cat([torch.zeros(8), torch.ones(8), torch.full((8,), 1e-40)])
    assert through(OneBit(block=8), x).tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 8
    assert torch.allclose(through(Int8(block=8), x), torch.cat([torch.zeros(8), torch.ones(8), torch.zeros(8)]))


@given(case=cases(dtypes=(torch.float32,), values=("normal", "heavy", "spike", "ties")), stochastic=st.booleans())
def test_int8_error_is_within_one_level(case: Case, stochastic: bool) -> None:
    codec = Int8(block=64, stochastic=stochastic)
    flat = case.flat
    left = (through(codec, flat) - flat).abs()
    for part, block in zip(left.split(64), flat.split(64), strict=True):
        scale = float(block.abs().max()) / 127
        assert float(part.max()) <= scale * (1.0 if stochastic else 0.5) * 1.0001


def test_int8_keeps_its_own_levels() -> None:
    x = torch.arange(-127, 128).float() * 0.5
    assert torch.allclose(through(Int8(), x), x, rtol=1e-6)
    payload = Int8().compress(x, {}, context(x)).payload
    assert payload[4:].view(torch.int8).tolist() == list(range(-127, 128))


def test_int8_rounds_half_to_even() -> None:
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5])
    assert through(Int8(), x).tolist() == [127.0, 0.0, 2.0, 2.0, 0.0, -2.0]


def test_stochastic_rounding_differs_by_rank_step_and_seed_and_by_nothing_else() -> None:
    codec, x = Int8(stochastic=True), torch.linspace(-1, 1, 500)

    def payload(**options: int) -> bytes:
        return as_bytes(codec.compress(x, {}, context(x, **options)).payload)

    streams = {payload(), payload(rank=1), payload(step=1), payload(seed=1)}
    assert len(streams) == 4
    assert payload() in streams
    assert payload(rank=1) in streams
