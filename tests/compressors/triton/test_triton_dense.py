"""Kernels in Triton that treat all elements alike give what the reference gives, bit for bit."""

from __future__ import annotations

import pytest
import torch
from gradwire.compressors.kernels import reference
from hypothesis import given
from hypothesis import strategies as st
from support.triton_cases import DEVICE, INF, NAN, SIZES, Case, cases, fed, few, kernels, same, there, unchanged

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DIVISORS = st.sampled_from([1.0, 2.0, 64.0])


def check_total(case: Case) -> None:
    feed, (expected, verdict) = case.feed(DEVICE), reference.total(case.feed())
    flat, finite = kernels.total(feed)
    assert finite.dtype is torch.bool
    assert bool(finite) == verdict
    assert not verdict or same(flat, expected)
    assert feed.rest is None or flat is feed.rest
    assert unchanged(feed, case)


def check_cast(case: Case, dtype: torch.dtype, divisor: float) -> None:
    feeds = case.feed(), case.feed(DEVICE)
    theirs, mine = torch.zeros(case.n, dtype=dtype), torch.zeros(case.n, dtype=dtype, device=DEVICE)
    expected = reference.cast_encode(feeds[0], divisor, theirs)
    saturated = kernels.cast_encode(feeds[1], divisor, mine)
    assert saturated.dtype is torch.int64
    assert int(saturated) == expected
    assert unchanged(feeds[1], case)
    if expected >= 0:
        assert same(mine, theirs)
        assert same(feeds[1].rest, feeds[0].rest)


@pytest.mark.parametrize("n", SIZES)
def test_totals_and_casts(n: int) -> None:
    for case in cases(n):
        check_total(case)
        check_cast(case, torch.float16, 1.0)
        check_cast(case, torch.bfloat16, 8.0)


@given(case=fed())
@few
def test_totals_of_any_numbers(case: Case) -> None:
    check_total(case)


@given(case=fed(), dtype=st.sampled_from([torch.float16, torch.bfloat16]), divisor=DIVISORS)
@few
def test_casts_of_any_numbers(case: Case, dtype: torch.dtype, divisor: float) -> None:
    check_cast(case, dtype, divisor)


@given(case=fed())
@few
def test_checks(case: Case) -> None:
    assert bool(kernels.all_finite(there(case.x))) == bool(case.x.isfinite().all())


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
@pytest.mark.parametrize("where", [0, 4095, 4096, 9000])
def test_one_number_is_enough(where: int, broken: float) -> None:
    for dtype in FLOATS:
        x = torch.ones(9001, dtype=dtype, device=DEVICE)
        x[where] = broken
        assert not kernels.all_finite(x)
        assert not kernels.copy(x, torch.empty_like(x))


def test_a_large_number_in_double_precision_is_finite_itself_but_not_as_a_sum() -> None:
    x = torch.full((9,), 1e300, dtype=torch.float64, device=DEVICE)
    feed = Case(x.cpu()).feed(DEVICE)
    assert kernels.all_finite(x)
    assert not kernels.total(feed)[1]


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_copies(source: torch.dtype, target: torch.dtype) -> None:
    for n in (1, 255, 5000):
        x = (torch.randn(n) * 10.0 ** torch.randint(-9, 5, (n,))).to(source)
        theirs, mine = torch.empty(n, dtype=target), torch.empty(n, dtype=target, device=DEVICE)
        assert bool(kernels.copy(there(x), mine)) == reference.copy(x, theirs)
        assert same(mine, theirs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", SIZES)
def test_added_casts(n: int, dtype: torch.dtype) -> None:
    added, out = torch.randn(n).to(dtype), torch.randn(n)
    mine = there(out)
    kernels.cast_decode_add(there(added), mine, 0.3)
    reference.cast_decode_add(added, out, 0.3)
    kernels.cast_decode_add(there(added), mine, 0.4, fresh=True)
    reference.cast_decode_add(added, out, 0.4, fresh=True)
    assert same(mine, out)
