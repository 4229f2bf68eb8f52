"""Native decoders add what the reference adds, bit for bit, and refuse what it refuses before they write."""

from __future__ import annotations

import pytest
import torch
from gradwire import PayloadError, UsageError
from gradwire.compressors.kernels import (
    E4M3,
    E5M2,
    INT4,
    INT8,
    Feed,
    Grid,
    blocks_of,
    indices_of,
    levels_bytes,
    native,
    reference,
    two_bit_bytes,
)
from hypothesis import given
from hypothesis import strategies as st
from support.native_cases import (
    DTYPES,
    FORMS,
    SIZES,
    VALUES,
    check_decoder,
    needs_native,
    running,
    same_bits,
    shifted,
    values,
)

pytestmark = needs_native

forms, threads = st.sampled_from(FORMS), st.integers(1, 3)
weights = st.sampled_from([1.0, -1.0, 0.1, 1 / 3, 1e30, 1e-42])
seeds, offsets = st.integers(0, 1 << 20), st.integers(0, 1)
BLOCKS = st.sampled_from([8, 16, 24, 64, 1000, 2048, 65_544, 1 << 20])


@given(data=st.data(), n=SIZES, dtype=st.sampled_from(DTYPES), kind=st.sampled_from(VALUES), seed=seeds)
def test_casts(data: st.DataObject, n: int, dtype: torch.dtype, kind: str, seed: int) -> None:
    sent = shifted(values(kind, n, seed).to(dtype), data.draw(offsets))  # what fp16 cannot hold is inf
    weight, count = data.draw(weights), data.draw(threads)
    fresh = data.draw(st.booleans())
    check_decoder(
        data.draw(forms),
        values("normal", n, seed + 1),
        lambda out: reference.cast_decode_add(sent, out, weight, fresh=fresh),
        lambda out: native.cast_decode_add(sent, out, weight, count, fresh=fresh),
    )


@given(data=st.data(), n=SIZES, start=st.integers(0, 16))
def test_zeros(data: st.DataObject, n: int, start: int) -> None:
    """At any address, and nothing beside them."""
    around = torch.full((start + n + 16,), float("nan"))
    with running(data.draw(forms)):
        native.zero(around[start : start + n], data.draw(threads))
    assert not around[start : start + n].any()
    assert int(around.isnan().sum()) == start + 16


@given(isa=forms)
def test_every_16_bit_pattern(isa: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        sent = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(dtype)
        check_decoder(
            isa,
            torch.zeros(1 << 16),
            lambda out, sent=sent: reference.cast_decode_add(sent, out, 1.0),
            lambda out, sent=sent: native.cast_decode_add(sent, out, 1.0),
        )


def broken_scale(data: st.DataObject, payload: torch.Tensor, blocks: int) -> None:
    """Now and then, another scale than an encoder writes."""
    scale = data.draw(st.sampled_from([None, None, -0.0, 1e-40, -1e-40, -1.0, float("inf"), float("nan")]))
    if scale is not None:
        payload[: 4 * blocks].view(torch.float32)[data.draw(st.integers(0, blocks - 1))] = scale


@given(data=st.data(), n=SIZES, block=BLOCKS, kind=st.sampled_from(VALUES), seed=seeds)
def test_signs(data: st.DataObject, n: int, block: int, kind: str, seed: int) -> None:
    payload = torch.empty(4 * blocks_of(n, block) + (n + 7) // 8, dtype=torch.uint8)
    assert reference.sign_encode(Feed(values(kind, n, seed)), block, 1, payload)
    broken_scale(data, payload, blocks_of(n, block))
    weight, count, odd = data.draw(weights), data.draw(threads), shifted(payload, data.draw(offsets))
    fresh = data.draw(st.booleans())
    check_decoder(
        data.draw(forms),
        values("normal", n, seed + 1),
        lambda out: reference.sign_decode_add(payload, block, out, weight, fresh=fresh),
        lambda out: native.sign_decode_add(odd, block, out, weight, count, fresh=fresh),
    )


@given(data=st.data(), n=SIZES, block=BLOCKS, seed=seeds)
def test_signs_apart_from_their_scales(data: st.DataObject, n: int, block: int, seed: int) -> None:
    bits = torch.randint(256, ((n + 7) // 8,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    scales, weight, count = values("normal", blocks_of(n, block), seed), data.draw(weights), data.draw(threads)
    fresh = data.draw(st.booleans())
    check_decoder(
        data.draw(forms),
        values("normal", n, seed + 1),
        lambda out: reference.sign_unpack_add(bits, scales, block, out, weight, fresh=fresh),
        lambda out: native.sign_unpack_add(bits, scales, block, out, weight, count, fresh=fresh),
    )


@pytest.mark.parametrize("grid", [INT8, INT4, E4M3, E5M2], ids=lambda grid: grid.name)
@given(data=st.data(), n=SIZES, block=BLOCKS | st.integers(1, 300), kind=st.sampled_from(VALUES), seed=seeds)
def test_levels(grid: Grid, data: st.DataObject, n: int, block: int, kind: str, seed: int) -> None:
    block += block % 2 if grid is INT4 else 0
    payload = torch.empty(levels_bytes(n, block, grid), dtype=torch.uint8)
    assert reference.levels_encode(Feed(values(kind, n, seed)), grid, block, None, payload)
    codes = payload[4 * blocks_of(n, block) :]
    codes[-256:] = torch.arange(256)[-codes.numel() :]  # also those that no encoder writes
    broken_scale(data, payload, blocks_of(n, block))
    weight, count, odd = data.draw(weights), data.draw(threads), shifted(payload, data.draw(offsets))
    fresh = data.draw(st.booleans())
    check_decoder(
        data.draw(forms),
        values("normal", n, seed + 1),
        lambda out: reference.levels_decode_add(payload, grid, block, out, weight, fresh=fresh),
        lambda out: native.levels_decode_add(odd, grid, block, out, weight, count, fresh=fresh),
    )


@given(data=st.data(), n=SIZES, block=BLOCKS | st.integers(1, 75).map(lambda four: 4 * four), seed=seeds)
def test_two_bits(data: st.DataObject, n: int, block: int, seed: int) -> None:
    payload = torch.randint(256, (two_bit_bytes(n, block),), generator=torch.Generator().manual_seed(seed)).byte()
    magnitudes = payload[: 8 * blocks_of(n, block)].view(torch.float32)
    magnitudes.copy_(values("heavy", magnitudes.numel(), seed).abs())
    broken_scale(data, payload, magnitudes.numel())
    weight, count, odd = data.draw(weights), data.draw(threads), shifted(payload, data.draw(offsets))
    fresh = data.draw(st.booleans())
    check_decoder(
        data.draw(forms),
        values("normal", n, seed + 1),
        lambda out: reference.two_bit_decode_add(payload, block, out, weight, fresh=fresh),
        lambda out: native.two_bit_decode_add(odd, block, out, weight, count, fresh=fresh),
    )


@st.composite
def sparse(draw: st.DrawFn, mutate: bool = True) -> tuple[torch.Tensor, int, int, bool]:
    """A payload of an encoder, often with a few other bytes among its places; n, k, and whether it has all k."""
    n, exact = draw(SIZES), draw(st.booleans())
    k = max(1, int(draw(st.sampled_from([0.0, 0.001, 0.02, 0.3, 0.9, 1.0])) * n))
    nbytes = indices_of(n, k, exact).nbytes
    payload = torch.empty(nbytes + 4 * k, dtype=torch.uint8)
    x = values(draw(st.sampled_from(VALUES)), n, draw(seeds))
    assert reference.top_k_encode(Feed(x), k, payload, exact)
    for _ in range(draw(st.integers(0, 3)) if mutate else 0):
        payload[draw(st.integers(0, nbytes - 1))] += draw(st.integers(1, 255))
    if mutate and draw(st.booleans()):
        at = draw(st.integers(0, nbytes - 2)) if nbytes > 1 else 0
        payload[at : at + 2] = payload[at : at + 2].flip(0)
    return payload, n, k, exact


@given(data=st.data(), case=sparse())
def test_sparse(data: st.DataObject, case: tuple[torch.Tensor, int, int, bool]) -> None:
    payload, n, k, exact = case
    weight, count, odd = data.draw(weights), data.draw(threads), shifted(payload, data.draw(offsets))
    isa = data.draw(forms)
    accepted = check_decoder(
        isa,
        values("normal", n, 1),
        lambda out: reference.sparse_decode_add(payload, k, out, weight, exact),
        lambda out: native.sparse_decode_add(odd, k, out, weight, exact, count),
    )
    if accepted:
        assert torch.equal(native.sparse_indices(odd, n, k, exact), reference.sparse_indices(payload, n, k, exact))
    else:
        with pytest.raises(PayloadError):
            native.sparse_indices(odd, n, k, exact)


@given(data=st.data(), case=sparse())
def test_places_are_cleared(data: st.DataObject, case: tuple[torch.Tensor, int, int, bool]) -> None:
    payload, n, k, exact = case
    check_decoder(
        data.draw(forms),
        values("normal", n, 1),
        lambda out: reference.clear(payload, k, out, exact),
        lambda out: native.clear(payload, k, out, exact),
    )


@given(data=st.data(), n=SIZES, seed=seeds, scaled=st.booleans())
def test_drawn(data: st.DataObject, n: int, seed: int, scaled: bool) -> None:
    sent, weight, count = values("heavy", data.draw(st.integers(1, n)), seed), data.draw(weights), data.draw(threads)
    check_decoder(
        data.draw(forms),
        values("normal", n, seed + 1),
        lambda out: reference.draw_decode_add(sent, seed, scaled, out, weight),
        lambda out: native.draw_decode_add(sent, seed, scaled, out, weight, count),
    )


indices = st.sets(st.integers(0, 40) | st.integers(0, 1 << 62)).map(lambda places: torch.tensor(sorted(places)).long())


@given(mine=indices, theirs=indices, seed=seeds)
def test_merged(mine: torch.Tensor, theirs: torch.Tensor, seed: int) -> None:
    vectors = mine, values("ties", mine.numel(), seed), theirs, values("ties", theirs.numel(), seed + 1)
    places, sums = reference.sparse_merge(*vectors)
    merged, added = native.sparse_merge(*vectors)
    assert torch.equal(merged, places)
    assert same_bits(added, sums)
    assert torch.equal(places, torch.cat((mine, theirs)).unique())
    assert float(sums.double().sum()) == float(torch.cat((vectors[1], vectors[3])).double().sum())


@pytest.mark.parametrize("form", [native, reference])
@pytest.mark.parametrize("wrong", [[3, 3], [5, 2], [-1, 4]])
def test_vectors_that_are_not_in_order_are_not_merged(form: object, wrong: list[int]) -> None:
    good, bad, two = torch.tensor([1, 2]), torch.tensor(wrong), torch.ones(2)
    for pair in ((good, two, bad, two), (bad, two, good, two)):
        with pytest.raises(UsageError, match="ascend strictly from 0"):
            form.sparse_merge(*pair)  # pyright: ignore[reportAttributeAccessIssue] - a module


@pytest.mark.parametrize(("n", "k", "width"), [(5000, 50, 8), (140_000, 10, 16), (140_000, 1, 32)])
def test_each_width_of_places_is_checked(n: int, k: int, width: int) -> None:
    assert indices_of(n, k).width == width
    payload = torch.empty(indices_of(n, k).nbytes + 4 * k, dtype=torch.uint8)
    assert reference.top_k_encode(Feed(values("normal", n, 1)), k, payload)
    for at in range(indices_of(n, k).nbytes):
        for change in (1, 0x80, 0xFF):
            other = payload.clone()
            other[at] += change
            check_decoder(
                "plain",
                torch.zeros(n),
                lambda out, other=other: reference.sparse_decode_add(other, k, out, 1.0),
                lambda out, other=other: native.sparse_decode_add(other, k, out, 1.0),
            )
