"""Quantizers in Triton write what the reference writes; only means may differ, in their last place."""

from __future__ import annotations

import pytest
import torch
from gradwire.compressors.kernels import (
    E4M3,
    E5M2,
    INT4,
    INT8,
    Grid,
    blocks_of,
    levels_bytes,
    reference,
    sign_bytes,
    two_bit_bytes,
)
from gradwire.compressors.kernels.layout import PAIR_BYTES, SCALE_BYTES
from hypothesis import given
from hypothesis import strategies as st
from support.triton_cases import (
    DEVICE,
    SIZES,
    Case,
    cases,
    fed,
    few,
    kernels,
    means_agree,
    same,
    some_bytes,
    there,
    unchanged,
    values,
)

GRIDS = (INT8, INT4, E4M3, E5M2)
#: short ones, several to a program; long ones, in pieces
BLOCKS = st.sampled_from([8, 24, 256, 1000, 1 << 20])
SEEDS = st.none() | st.integers(0, 2**64 - 1)
#: as many as programs hold of a block
LONG = 9001


def check_means(case: Case, kind: str, at: int, nbytes: int, *options: int) -> None:
    """Payloads that begin with means, up to `at`: the rest of them agrees, and both decode what is sent alike."""
    encode, decode = (getattr(reference, f"{kind}_{what}") for what in ("encode", "decode_add"))
    theirs, feed = some_bytes(nbytes), case.feed(DEVICE)
    payload = there(theirs)
    expected = encode(case.feed(), *options, theirs)
    assert bool(getattr(kernels, f"{kind}_encode")(feed, *options, payload)) == expected
    assert unchanged(feed, case)
    if not expected:
        return
    mine = payload.cpu()
    assert means_agree(mine[:at].view(torch.float32), theirs[:at].view(torch.float32))
    assert same(mine[at:], theirs[at:])
    (left, _), out = reference.total(case.feed()), values("normal", case.n, 5)
    added = there(out)
    decode(mine, options[0], left, -1.0)
    assert feed.rest is None or same(feed.rest, left)
    decode(mine, options[0], out, 0.3)
    getattr(kernels, f"{kind}_decode_add")(payload, options[0], added, 0.3)
    assert same(added, out)
    decode(mine, options[0], out, 0.4, fresh=True)
    getattr(kernels, f"{kind}_decode_add")(payload, options[0], added, 0.4, fresh=True)
    assert same(added, out)


def check_sign(case: Case, block: int, order: int) -> None:
    at = SCALE_BYTES * blocks_of(case.n, block)
    check_means(case, "sign", at, sign_bytes(case.n, block), block, order)


def check_levels(case: Case, grid: Grid, block: int, seed: int | None) -> None:
    feeds, theirs = (case.feed(), case.feed(DEVICE)), some_bytes(levels_bytes(case.n, block, grid))
    mine = there(theirs)
    expected = reference.levels_encode(feeds[0], grid, block, seed, theirs)
    assert bool(kernels.levels_encode(feeds[1], grid, block, seed, mine)) == expected
    assert unchanged(feeds[1], case)
    if expected:
        assert same(mine, theirs)
        assert same(feeds[1].rest, feeds[0].rest)


def check_two_bit(case: Case, block: int) -> None:
    at = PAIR_BYTES * blocks_of(case.n, block)
    check_means(case, "two_bit", at, two_bit_bytes(case.n, block), block)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("n", SIZES)
def test_signs(n: int, order: int) -> None:
    for number, case in enumerate(cases(n)):
        check_sign(case, (2048, 8, 1000, 24, 1 << 20)[number] if n < LONG else (2048, 1 << 20)[number % 2], order)


@given(case=fed(), block=BLOCKS, order=st.integers(1, 2))
@few
def test_signs_of_any_numbers(case: Case, block: int, order: int) -> None:
    check_sign(case, block, order)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", SIZES)
def test_bits_alone(n: int, dtype: torch.dtype) -> None:
    x = values("few", n, n).to(dtype)
    theirs, mine = some_bytes((n + 7) // 8), there(some_bytes((n + 7) // 8))
    reference.sign_pack(x, theirs)
    kernels.sign_pack(there(x), mine)
    assert same(mine, theirs)
    scales = torch.tensor([-1.0, 2.0]).repeat(1 + n // 16)[: blocks_of(n, 8)]
    out, added = torch.zeros(n), torch.zeros(n, device=DEVICE)
    reference.sign_unpack_add(theirs, scales, 8, out, 3.0)
    kernels.sign_unpack_add(mine, there(scales), 8, added, 3.0)
    assert same(added, out)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
@pytest.mark.parametrize("n", SIZES)
def test_levels(n: int, grid: Grid) -> None:
    for number, case in enumerate(cases(n)):
        block = (256, 6, 1000, 256, 1 << 20)[number] if n < LONG else (256, 1 << 20)[number % 2]
        check_levels(case, grid, block, 1234567890123 * number if grid in (INT8, INT4) and number % 2 else None)


@given(case=fed(), grid=st.sampled_from(GRIDS), block=BLOCKS, seed=SEEDS)
@few
def test_levels_of_any_numbers(case: Case, grid: Grid, block: int, seed: int | None) -> None:
    check_levels(case, grid, block, seed if grid in (INT8, INT4) else None)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_blocks_of_odd_length_draw_the_same_numbers(seed: int) -> None:
    for block in (1, 3, 5):
        check_levels(Case(values("normal", 300, 1)), INT8, block, seed)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_all_codes_are_read(grid: Grid) -> None:
    """Every byte stands for what the reference says, also those that no encoder writes."""
    n = 512 // grid.bits * 8
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).repeat(2)
    payload = torch.cat([torch.full((blocks_of(n, 64),), 0.7).view(torch.uint8), codes])
    out, added = torch.ones(n), torch.ones(n, device=DEVICE)
    reference.levels_decode_add(payload, grid, 64, out, 0.3)
    kernels.levels_decode_add(there(payload), grid, 64, added, 0.3)
    assert same(added, out)


@pytest.mark.parametrize("grid", [E4M3, E5M2], ids=lambda grid: grid.name)
def test_floats_between_two_codes(grid: Grid) -> None:
    """All codes, halves between neighbours, and what is next to these; the scale is 1."""
    codes = torch.arange(127 if grid is E4M3 else 124).to(torch.uint8)
    exact = codes.view(torch.float8_e4m3fn if grid is E4M3 else torch.float8_e5m2).float()
    halves = (exact[1:] + exact[:-1]) / 2
    x = torch.cat([exact, halves, torch.nextafter(halves, exact[1:]), torch.nextafter(halves, exact[:-1])])
    check_levels(Case(torch.cat([x, -x])), grid, 1 << 20, None)


@pytest.mark.parametrize("n", SIZES)
def test_two_bits(n: int) -> None:
    for number, case in enumerate(cases(n)):
        check_two_bit(case, (2048, 4, 1000, 24, 1 << 20)[number] if n < LONG else (256, 1 << 20)[number % 2])


@given(case=fed(), block=BLOCKS)
@few
def test_two_bits_of_any_numbers(case: Case, block: int) -> None:
    check_two_bit(case, block)


@pytest.mark.parametrize("kind", ["constant", "zeros", "few", "ties", "bits", "tiny", "huge"])
def test_numbers_of_each_kind(kind: str) -> None:
    case = Case(values(kind, 1000, 1), rest="own")
    for block in (64, 1 << 20):
        check_sign(case, block, 1)
        check_sign(case, block, 2)
        check_two_bit(case, block)
        for grid in GRIDS:
            check_levels(case, grid, block, None)
