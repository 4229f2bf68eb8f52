"""Native encoders write what the reference writes, bit for bit, in every form and with any number of threads."""

from __future__ import annotations

import pytest
import torch
from gradwire.compressors.kernels import (
    E4M3,
    E5M2,
    INT4,
    INT8,
    Feed,
    Grid,
    blocks_of,
    levels_bytes,
    native,
    reference,
    sign_bytes,
    two_bit_bytes,
)
from hypothesis import given
from hypothesis import strategies as st
from support.native_cases import (
    FORMS,
    LONG,
    Fed,
    check_encoder,
    fed,
    means_agree,
    needs_native,
    running,
    same_bits,
    some_bytes,
    values,
)

pytestmark = needs_native

BLOCKS = st.sampled_from([8, 16, 24, 64, 1000, 2048, 8192, 65_544, 1 << 20])
ODD_BLOCKS = BLOCKS | st.integers(1, 300)


@given(case=fed(), dtype=st.sampled_from([torch.float16, torch.bfloat16]), divisor=st.sampled_from([1.0, 2.0, 64.0]))
def test_casts(case: Fed, dtype: torch.dtype, divisor: float) -> None:
    check_encoder(
        case,
        torch.zeros(case.n, dtype=dtype),
        lambda feed, out: reference.cast_encode(feed, divisor, out),
        lambda feed, out: native.cast_encode(feed, divisor, out, case.threads),
    )


@given(case=fed())
def test_copies(case: Fed) -> None:
    check_encoder(
        case,
        torch.zeros_like(case.x),
        lambda feed, out: reference.copy(feed.x, out),
        lambda feed, out: native.copy(feed.x, out, case.threads),
    )


@given(case=fed())
def test_checks(case: Fed) -> None:
    with running(case.isa):
        assert native.all_finite(case.x, case.threads) == bool(case.x.isfinite().all())


@given(case=fed())
def test_totals(case: Fed) -> None:
    (expected, finite), feed = reference.total(case.feed()), case.feed()
    with running(case.isa):
        result, fine = native.total(feed, case.threads)
    assert fine == finite
    assert not finite or same_bits(result, expected)
    assert feed.rest is None or result is feed.rest


@given(case=fed(), block=BLOCKS, order=st.integers(1, 2))
def test_signs(case: Fed, block: int, order: int) -> None:
    check_signs(case, block, order)


def check_signs(case: Fed, block: int, order: int) -> None:
    """Scales are means, which may differ in the last place; the rest is what the own scales leave."""
    at = 4 * blocks_of(case.n, block)
    feeds, payloads = (case.feed(), case.feed()), [some_bytes(sign_bytes(case.n, block)) for _ in range(2)]
    expected = reference.sign_encode(feeds[0], block, order, payloads[0])
    with running(case.isa):
        assert native.sign_encode(feeds[1], block, order, payloads[1], case.threads) == expected
    if not expected:
        return
    assert means_agree(payloads[1][:at].view(torch.float32), payloads[0][:at].view(torch.float32))
    assert same_bits(payloads[1][at:], payloads[0][at:])
    left, _ = reference.total(case.feed())
    reference.sign_unpack_add(payloads[1][at:], payloads[1][:at].view(torch.float32), block, left, -1.0)
    assert feeds[1].rest is None or same_bits(feeds[1].rest, left)


@given(case=fed(), block=BLOCKS, order=st.integers(1, 2))
def test_sums_depend_neither_on_form_nor_on_threads(case: Fed, block: int, order: int) -> None:
    payloads = []
    for isa, threads in (("plain", 1), (case.isa, case.threads)):
        payloads.append(some_bytes(sign_bytes(case.n, block)))
        with running(isa):
            finite = native.sign_encode(case.feed(), block, order, payloads[-1], threads)
        if not finite:
            return
    assert same_bits(payloads[0], payloads[1])


@given(case=fed())
def test_bits_alone(case: Fed) -> None:
    x = case.x.float().nan_to_num()
    expected, bits = some_bytes((case.n + 7) // 8), some_bytes((case.n + 7) // 8)
    reference.sign_pack(x, expected)
    with running(case.isa):
        native.sign_pack(x, bits, case.threads)
    assert same_bits(bits, expected)


@pytest.mark.parametrize("grid", [INT8, INT4, E4M3, E5M2], ids=lambda grid: grid.name)
@given(case=fed(), block=ODD_BLOCKS, seed=st.none() | st.integers(0, (1 << 64) - 1))
def test_levels(grid: Grid, case: Fed, block: int, seed: int | None) -> None:
    block += block % 2 if grid is INT4 else 0
    at_random = seed if grid in (INT8, INT4) else None
    check_encoder(
        case,
        some_bytes(levels_bytes(case.n, block, grid)),
        lambda feed, out: reference.levels_encode(feed, grid, block, at_random, out),
        lambda feed, out: native.levels_encode(feed, grid, block, at_random, out, case.threads),
    )


@pytest.mark.parametrize("isa", FORMS)
@pytest.mark.parametrize("grid", [E4M3, E5M2], ids=lambda grid: grid.name)
def test_all_roundings_to_8_bits(isa: str, grid: Grid) -> None:
    """Every pattern of the upper 16 bits, and those next to it: all codes, all ties, and what lies beside them."""
    upper = torch.arange(1 << 16).to(torch.int32) << 16
    x = torch.cat([upper - 1, upper, upper + 1, upper | 0x8000]).view(torch.float32)
    x = torch.cat([torch.tensor([grid.most]), x[x.abs() <= grid.most]])
    payloads = [some_bytes(levels_bytes(x.numel(), x.numel(), grid)) for _ in range(2)]
    assert reference.levels_encode(Feed(x), grid, x.numel(), None, payloads[0])
    with running(isa):
        assert native.levels_encode(Feed(x), grid, x.numel(), None, payloads[1])
    assert same_bits(payloads[1], payloads[0])
    assert payloads[0][4:].unique().numel() >= 240


@given(case=fed(), block=ODD_BLOCKS)
def test_two_bits(case: Fed, block: int) -> None:
    """Magnitudes are means, which may differ in the last place; the codes agree, and rest is what they leave."""
    block += -block % 4
    at = 8 * blocks_of(case.n, block)
    feeds, payloads = (case.feed(), case.feed()), [some_bytes(two_bit_bytes(case.n, block)) for _ in range(2)]
    expected = reference.two_bit_encode(feeds[0], block, payloads[0])
    with running(case.isa):
        assert native.two_bit_encode(feeds[1], block, payloads[1], case.threads) == expected
    if not expected:
        return
    assert means_agree(payloads[1][:at].view(torch.float32), payloads[0][:at].view(torch.float32))
    assert same_bits(payloads[1][at:], payloads[0][at:])
    left, _ = reference.total(case.feed())
    reference.two_bit_decode_add(payloads[1], block, left, -1.0)
    assert feeds[1].rest is None or same_bits(feeds[1].rest, left)


@pytest.mark.parametrize("isa", FORMS)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("rest", ["own", "x"])
def test_long_tensors(isa: str, offset: int, rest: str) -> None:
    case = Fed(values("heavy", LONG, 1), values("normal", LONG, 2), 0.9, rest, offset, isa, threads=2)
    check_encoder(
        case,
        torch.zeros(LONG, dtype=torch.float16),
        lambda feed, out: reference.cast_encode(feed, 1.0, out),
        lambda feed, out: native.cast_encode(feed, 1.0, out, 2),
    )
    for block in (256, 1 << 20):
        check_encoder(
            case,
            some_bytes(levels_bytes(LONG, block, INT8)),
            lambda feed, out, block=block: reference.levels_encode(feed, INT8, block, None, out),
            lambda feed, out, block=block: native.levels_encode(feed, INT8, block, None, out, 2),
        )
        check_signs(case, block, 1)
    check_encoder(
        case,
        torch.zeros(LONG),
        lambda feed, out: reference.copy(feed.x, out),
        lambda feed, out: native.copy(feed.x, out, 2),
    )


def test_counted_random_numbers_are_those_of_the_paper() -> None:
    """Known answers of Philox4x32-10 (Random123): by them, element 0 to 3 of a block are rounded up or not."""
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    x = torch.tensor([127.0, 127.0, 127.0, 127.0, 127.0])
    for j, word in enumerate(words):
        chance = word / (1 << 32)
        for shift, level in ((-1e-3, 0), (1e-3, 1)):
            x[:4] = 0
            x[j] = 1 - chance + shift
            payload = some_bytes(4 + 5)
            assert native.levels_encode(Feed(x), INT8, 5, 0, payload)
            assert payload[4 + j] == level
