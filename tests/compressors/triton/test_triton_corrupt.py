"""Corrupt payloads: decoders in Triton stay within bounds, and make the first element NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gradwire.compressors.errors import PayloadError
from gradwire.compressors.kernels import (
    E5M2,
    INT4,
    INT8,
    Feed,
    Grid,
    indices_of,
    levels_bytes,
    reference,
    two_bit_bytes,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support.triton_cases import INF, NAN, Guarded, few, kernels, same, some_bytes, there, values

Decode = Callable[[torch.Tensor, torch.Tensor], None]
BAD = [-1.0, INF, -INF, NAN, -1e-42]


def check(payload: torch.Tensor, n: int, theirs: Decode, mine: Decode) -> None:
    """What the reference refuses makes the first element NaN; else both do the same."""
    out, read = values("normal", n, 9), Guarded(payload.view(torch.float32)) if payload.numel() % 4 == 0 else None
    guarded = Guarded(out)
    inside = there(payload) if read is None else read.inner.view(torch.uint8)
    mine(inside, guarded.inner)
    assert guarded.intact()
    assert same(inside, payload)
    try:
        theirs(payload, out)
    except PayloadError:
        assert guarded.inner[0].isnan()
    else:
        assert same(guarded.inner, out)


def check_scales(payload: torch.Tensor, n: int, block: int, scales: int, theirs: Decode, mine: Decode) -> None:
    """A bad scale at each place: its block is NaN, others are as without it."""
    expected = values("normal", n, 9)
    theirs(payload, expected)
    for place in range(scales):
        spoilt = payload.clone()
        spoilt[: 4 * scales].view(torch.float32)[place] = BAD[place % len(BAD)]
        guarded = Guarded(values("normal", n, 9))
        mine(there(spoilt), guarded.inner)
        found, start = guarded.inner.cpu(), place * block
        assert guarded.intact()
        assert found[0].isnan()
        assert found[start : start + block].isnan().all()
        after = slice(start + block, None)
        assert same(found[after], expected[after])
        assert same(found[1:start], expected[1:start])


@pytest.mark.parametrize(("n", "block"), [(1, 8), (100, 24), (9001, 9008)])
def test_scales_of_signs(n: int, block: int) -> None:
    scales = -(-n // block)
    payload = some_bytes(4 * scales + (n + 7) // 8)
    reference.sign_encode(Feed(values("normal", n, 1)), block, 1, payload)
    check_scales(
        payload,
        n,
        block,
        scales,
        lambda payload, out: reference.sign_decode_add(payload, block, out, 0.5),
        lambda payload, out: kernels.sign_decode_add(payload, block, out, 0.5),
    )


@pytest.mark.parametrize("grid", [INT8, INT4, E5M2], ids=lambda grid: grid.name)
@pytest.mark.parametrize(("n", "block"), [(1, 8), (100, 24), (9001, 9008)])
def test_scales_of_levels(grid: Grid, n: int, block: int) -> None:
    payload = some_bytes(levels_bytes(n, block, grid))
    reference.levels_encode(Feed(values("normal", n, 1)), grid, block, None, payload)
    check_scales(
        payload,
        n,
        block,
        -(-n // block),
        lambda payload, out: reference.levels_decode_add(payload, grid, block, out, 0.5),
        lambda payload, out: kernels.levels_decode_add(payload, grid, block, out, 0.5),
    )


@pytest.mark.parametrize("bad", BAD)
def test_magnitudes_of_two_bits(bad: float) -> None:
    n, block = 100, 24
    payload = some_bytes(two_bit_bytes(n, block))
    reference.two_bit_encode(Feed(values("normal", n, 1)), block, payload)
    payload[:40].view(torch.float32)[5] = bad
    guarded = Guarded(values("normal", n, 9))
    kernels.two_bit_decode_add(there(payload), block, guarded.inner, 0.5)
    assert guarded.intact()
    assert guarded.inner[0].isnan()
    assert guarded.inner[48:72].isnan().any()
    assert guarded.inner[1:48].isfinite().all()


def readers(k: int, exact: bool) -> list[tuple[Decode, Decode]]:
    return [
        (
            lambda payload, out: reference.sparse_decode_add(payload, k, out, 0.5, exact),
            lambda payload, out: kernels.sparse_decode_add(payload, k, out, 0.5, exact),
        ),
        (
            lambda payload, out: reference.clear(payload, k, out, exact),
            lambda payload, out: kernels.clear(payload, k, out, exact),
        ),
    ]


def places(n: int, k: int, exact: bool) -> torch.Tensor:
    payload = some_bytes(indices_of(n, k, exact).nbytes + 4 * k)
    reference.top_k_encode(Feed(values("normal", n, 1)), k, payload, exact)
    return payload


SHAPES = st.sampled_from([(1, 1), (300, 3), (1000, 1), (1000, 300), (5000, 50), (66_000, 20), (140_000, 1)])


@given(shape=SHAPES, exact=st.booleans(), changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3))
@settings(max_examples=20)
def test_changed_places(shape: tuple[int, int], exact: bool, changes: list[tuple[int, int]]) -> None:
    n, k = shape
    payload = places(n, k, exact)
    for where, byte in changes:
        payload[where % (indices_of(n, k, exact).nbytes)] = byte
    theirs, mine = readers(k, exact)[len(changes) % 2]
    check(payload, n, theirs, mine)


@given(shape=SHAPES, exact=st.booleans(), seed=st.integers(0, 99), most=st.sampled_from([1, 2, 256]))
@settings(max_examples=20)
def test_places_of_any_bytes(shape: tuple[int, int], exact: bool, seed: int, most: int) -> None:
    n, k = shape
    nbytes = indices_of(n, k, exact).nbytes
    noise = torch.randint(0, most, (nbytes + 4 * k,), generator=torch.Generator().manual_seed(seed))
    payload = noise.to(torch.uint8)
    payload[nbytes:] = 0
    check(payload, n, *readers(k, exact)[seed % 2])


@pytest.mark.parametrize(
    ("n", "k", "change"),
    [
        (300, 3, {0: 1, 1: 1}),
        (300, 3, {0: 3, 1: 1}),
        (300, 3, {0: 3, 1: 0, 2: 5, 3: 5, 4: 6}),
        (300, 3, {0: 3, 1: 0, 2: 5, 3: 6, 4: 255}),
        (300, 3, {0: 0, 1: 3, 2: 5, 3: 6, 4: 45}),
        (1000, 1, {0: 232, 1: 3}),
        (1000, 1, {0: 0, 1: 0, 2: 0, 3: 128}),
        (66_000, 20, {0: 255, 1: 255}),
    ],
    ids=["few", "many", "equal", "outside a chunk", "outside", "plain: outside", "plain: huge", "wide: many"],
)
def test_each_kind_of_wrong_place(n: int, k: int, change: dict[int, int]) -> None:
    payload = places(n, k, True)
    for where, byte in change.items():
        payload[where] = byte
    for theirs, mine in readers(k, True):
        with pytest.raises(PayloadError):
            theirs(payload, values("normal", n, 9))
        check(payload, n, theirs, mine)


@given(block=st.sampled_from([8, 24, 64]), seed=st.integers(0, 99))
@few
def test_levels_of_any_bytes(block: int, seed: int) -> None:
    n = 100
    noise = torch.randint(0, 256, (levels_bytes(n, block, INT8),), generator=torch.Generator().manual_seed(seed))
    payload = noise.to(torch.uint8)
    guarded = Guarded(values("normal", n, 9))
    kernels.levels_decode_add(there(payload), INT8, block, guarded.inner, 0.5)
    assert guarded.intact()
