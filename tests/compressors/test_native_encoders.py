"""Native encoders write what the reference writes, bit for bit, in every form and with any number of threads."""

from __future__ import annotations

from collections.abc import Callable

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
    indices_of,
    levels_bytes,
    native,
    reference,
    two_bit_bytes,
)
from hypothesis import given
from hypothesis import strategies as st
from support.native_cases import FORMS, Fed, fed, needs_native, running, same_bits, values

pytestmark = needs_native

#: an encoder, given what it writes to
Encode = Callable[[Feed, torch.Tensor], object]

BLOCKS = st.sampled_from([8, 16, 24, 64, 1000, 2048, 8192, 65_544, 1 << 20])
ODD_BLOCKS = BLOCKS | st.integers(1, 300)


def some_bytes(n: int) -> torch.Tensor:
    return torch.full((n,), 77, dtype=torch.uint8)


def check(case: Fed, out: torch.Tensor, slow: Encode, fast: Encode) -> None:
    """Both encode to memory like `out`; result, what was written, and rest must agree; nothing else may change."""
    feeds, outs = (case.feed(), case.feed()), (out.clone(), out.clone())
    expected = slow(feeds[0], outs[0])
    with running(case.isa):
        result = fast(feeds[1], outs[1])
    assert result == expected
    if expected is not False and expected != -1:
        assert same_bits(outs[1], outs[0])
        assert same_bits(feeds[1].rest, feeds[0].rest)
    assert case.rest == "x" or same_bits(feeds[1].x, case.x)
    assert same_bits(feeds[1].residual, case.residual)


@given(case=fed(), dtype=st.sampled_from([torch.float16, torch.bfloat16]), divisor=st.sampled_from([1.0, 2.0, 64.0]))
def test_casts(case: Fed, dtype: torch.dtype, divisor: float) -> None:
    check(
        case,
        torch.zeros(case.n, dtype=dtype),
        lambda feed, out: reference.cast_encode(feed, divisor, out),
        lambda feed, out: native.cast_encode(feed, divisor, out, case.threads),
    )


@given(case=fed())
def test_copies(case: Fed) -> None:
    check(
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
    feeds, payloads = (case.feed(), case.feed()), [some_bytes(at + (case.n + 7) // 8) for _ in range(2)]
    expected = reference.sign_encode(feeds[0], block, order, payloads[0])
    with running(case.isa):
        assert native.sign_encode(feeds[1], block, order, payloads[1], case.threads) == expected
    if not expected:
        return
    theirs, ours = (payload[:at].view(torch.int32) for payload in payloads)
    assert int((theirs - ours).abs().max()) <= 1 or scales_at_the_limit(theirs, ours)
    assert same_bits(payloads[1][at:], payloads[0][at:])
    left, _ = reference.total(case.feed())
    reference.sign_unpack_add(payloads[1][at:], payloads[1][:at].view(torch.float32), block, left, -1.0)
    assert feeds[1].rest is None or same_bits(feeds[1].rest, left)


def scales_at_the_limit(theirs: torch.Tensor, ours: torch.Tensor) -> bool:
    """Whether those that differ by more are 0 on one side, and hardly above the limit below which they are 0."""
    far = (theirs - ours).abs() > 1
    return bool(
        (torch.maximum(theirs, ours)[far] == 0x00800001).all() and (torch.minimum(theirs, ours)[far] == 0).all()
    )


@given(case=fed(), block=BLOCKS, order=st.integers(1, 2))
def test_sums_depend_neither_on_form_nor_on_threads(case: Fed, block: int, order: int) -> None:
    payloads = []
    for isa, threads in (("plain", 1), (case.isa, case.threads)):
        payloads.append(some_bytes(4 * blocks_of(case.n, block) + (case.n + 7) // 8))
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
    check(
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
    theirs, ours = (payload[:at].view(torch.int32) for payload in payloads)
    assert int((theirs - ours).abs().max()) <= 1 or scales_at_the_limit(theirs, ours)
    assert same_bits(payloads[1][at:], payloads[0][at:])
    left, _ = reference.total(case.feed())
    reference.two_bit_decode_add(payloads[1], block, left, -1.0)
    assert feeds[1].rest is None or same_bits(feeds[1].rest, left)


SHARES = st.sampled_from([0.0, 0.0001, 0.001, 0.01, 0.1, 0.4, 0.6, 1.0])


@given(case=fed(), share=SHARES, exact=st.booleans())
def test_largest(case: Fed, share: float, exact: bool) -> None:
    k = max(1, int(share * case.n))
    check(
        case,
        some_bytes(indices_of(case.n, k, exact).nbytes + 4 * k),
        lambda feed, out: reference.top_k_encode(feed, k, out, None, exact),
        lambda feed, out: native.top_k_encode(feed, k, out, None, exact, case.threads),
    )


@given(case=fed(), share=SHARES, exact=st.booleans())
def test_largest_with_values_elsewhere(case: Fed, share: float, exact: bool) -> None:
    k = max(1, int(share * case.n))
    found = [torch.ones(k), torch.zeros(k + 1)[1:]]
    check(
        case,
        some_bytes(indices_of(case.n, k, exact).nbytes + 4 * k),
        lambda feed, out: reference.top_k_encode(feed, k, out, found[0], exact),
        lambda feed, out: native.top_k_encode(feed, k, out, found[1], exact, case.threads),
    )
    assert not reference.total(case.feed())[1] or same_bits(found[1], found[0])


@given(
    case=fed(st.sampled_from([16_384, 65_535, 65_536, 131_071, 200_001])),
    share=st.sampled_from([0.02, 0.05, 0.1, 0.4]),
    elsewhere=st.booleans(),
)
def test_sampled(case: Fed, share: float, elsewhere: bool) -> None:
    """Tensors that are long enough for the samples to say something."""
    k = int(share * case.n)
    found = [torch.ones(k), torch.zeros(k)] if elsewhere else [None, None]
    check(
        case,
        some_bytes(indices_of(case.n, k, exact=False).nbytes + 4 * k),
        lambda feed, out: reference.top_k_encode(feed, k, out, found[0], False),
        lambda feed, out: native.top_k_encode(feed, k, out, found[1], False, case.threads),
    )
    assert not reference.total(case.feed())[1] or same_bits(found[1], found[0])


@given(case=fed(), share=st.sampled_from([0.0, 0.01, 0.3, 0.9, 1.0]), seed=st.integers(0, 99))
def test_drawn(case: Fed, share: float, seed: int) -> None:
    k = max(1, int(share * case.n))
    check(
        case,
        torch.zeros(k),
        lambda feed, out: reference.draw_encode(feed, k, seed, out),
        lambda feed, out: native.draw_encode(feed, k, seed, out, case.threads),
    )


@given(n=st.integers(1, 300_000), share=st.floats(0, 1), seed=st.integers(0, (1 << 64) - 1))
def test_draws(n: int, share: float, seed: int) -> None:
    k = min(n, int(share * n) + 1)
    assert torch.equal(native.draw(n, k, seed), reference.draw(n, k, seed))


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65])
def test_draws_of_all_and_of_nearly_all(n: int) -> None:
    for k in range(1, n + 1):
        assert torch.equal(native.draw(n, k, 5), reference.draw(n, k, 5))


#: rests of so many elements are written past the cache
LONG = (1 << 20) + 77


@pytest.mark.parametrize("isa", FORMS)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("rest", ["own", "x"])
def test_long_tensors(isa: str, offset: int, rest: str) -> None:
    case = Fed(values("heavy", LONG, 1), values("normal", LONG, 2), 0.9, rest, offset, isa, threads=2)
    k = LONG // 50
    check(
        case,
        torch.zeros(LONG, dtype=torch.float16),
        lambda feed, out: reference.cast_encode(feed, 1.0, out),
        lambda feed, out: native.cast_encode(feed, 1.0, out, 2),
    )
    for block in (256, 1 << 20):
        check(
            case,
            some_bytes(4 * blocks_of(LONG, block) + LONG),
            lambda feed, out, block=block: reference.levels_encode(feed, INT8, block, None, out),
            lambda feed, out, block=block: native.levels_encode(feed, INT8, block, None, out, 2),
        )
        check_signs(case, block, 1)
    check(
        case,
        torch.zeros(k),
        lambda feed, out: reference.draw_encode(feed, k, 3, out),
        lambda feed, out: native.draw_encode(feed, k, 3, out, 2),
    )
    for exact in (True, False):
        check(
            case,
            some_bytes(indices_of(LONG, k, exact).nbytes + 4 * k),
            lambda feed, out, exact=exact: reference.top_k_encode(feed, k, out, None, exact),
            lambda feed, out, exact=exact: native.top_k_encode(feed, k, out, None, exact, 2),
        )
    check(
        case,
        torch.zeros(LONG),
        lambda feed, out: reference.copy(feed.x, out),
        lambda feed, out: native.copy(feed.x, out, 2),
    )


#: what makes a sample mislead, fills lists, or makes every element a tie
UNLUCKY = {
    "ascending": lambda n: torch.linspace(1, 2, n),
    "descending": lambda n: torch.linspace(2, 1, n),
    "constant": lambda n: torch.ones(n),
    "zeros": lambda n: torch.zeros(n),
    "few": lambda n: values("few", n, 1),
    "steps": lambda n: (torch.arange(n) // (n // 7)).float(),
    "periodic": lambda n: (torch.arange(n) % 16 == 0).float() + torch.linspace(0, 1e-3, n),
    "last": lambda n: (torch.arange(n) >= n - n // 50).float(),
    "close": lambda n: 1 + torch.arange(n).remainder(97).float() * 2.0**-23,
}


@pytest.mark.parametrize("isa", FORMS)
@pytest.mark.parametrize("kind", UNLUCKY)
@pytest.mark.parametrize("n", [20_000, (1 << 20) + 3])
def test_largest_of_unlucky_tensors(isa: str, kind: str, n: int) -> None:
    x = UNLUCKY[kind](n)
    for k in (1, n // 1000, n // 49, n // 2 + 1):
        payloads = [some_bytes(indices_of(n, k).nbytes + 4 * k) for _ in range(3)]
        assert reference.top_k_encode(Feed(x), k, payloads[0], None)
        with running(isa):
            for threads, payload in enumerate(payloads[1:], 1):
                rest = torch.empty(n)
                assert native.top_k_encode(Feed(x, rest=rest), k, payload, None, True, threads)
                assert same_bits(payload, payloads[0])
                assert int(rest.count_nonzero()) == max(0, int(x.count_nonzero()) - k)


@pytest.mark.parametrize("isa", FORMS)
@pytest.mark.parametrize("kind", UNLUCKY)
def test_samples_of_unlucky_tensors(isa: str, kind: str) -> None:
    """Never more than wanted, never none, and the same in any number of threads."""
    n = (1 << 20) + 3
    x = UNLUCKY[kind](n)
    for k in (n // 1000, n // 49, n // 3):
        payloads = [some_bytes(indices_of(n, k, exact=False).nbytes + 4 * k) for _ in range(3)]
        assert reference.top_k_encode(Feed(x), k, payloads[0], None, exact=False)
        assert 1 <= reference.sparse_indices(payloads[0], n, k, exact=False).numel() <= k
        with running(isa):
            for threads, payload in enumerate(payloads[1:], 1):
                assert native.top_k_encode(Feed(x), k, payload, None, False, threads)
                assert same_bits(payload, payloads[0])


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
