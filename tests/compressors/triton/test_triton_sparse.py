"""Sparse kernels in Triton choose, write and read what the reference does, bit for bit."""

from __future__ import annotations

import pytest
import torch
from gradwire.compressors.errors import UsageError
from gradwire.compressors.kernels import E5M2, INT4, INT8, Coding, Feed, indices_of, reference
from gradwire.compressors.kernels.reference.select import _strata
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
    same,
    some_bytes,
    there,
    unchanged,
    values,
)

SEEDS = st.integers(0, 2**64 - 1)


def check_top_k(case: Case, k: int, exact: bool = True) -> None:
    theirs = some_bytes(indices_of(case.n, k, exact).nbytes + 4 * k)
    feeds, payload = (case.feed(), case.feed(DEVICE)), there(theirs)
    expected = reference.top_k_encode(feeds[0], k, theirs, exact)
    assert bool(kernels.top_k_encode(feeds[1], k, payload, exact)) == expected
    assert unchanged(feeds[1], case)
    if expected:
        assert same(payload, theirs)
        assert same(feeds[1].rest, feeds[0].rest)
        check_readers(theirs, case.n, k, exact)


def check_readers(payload: torch.Tensor, n: int, k: int, exact: bool) -> None:
    """Both add and clear."""
    out, read = values("normal", n, 3), there(payload)
    mine = there(out)
    reference.sparse_decode_add(payload, k, out, 0.3, exact)
    kernels.sparse_decode_add(read, k, mine, 0.3, exact)
    assert same(mine, out)
    reference.clear(payload, k, out, exact)
    kernels.clear(read, k, mine, exact)
    assert same(mine, out)


@pytest.mark.parametrize("n", SIZES)
def test_top_k(n: int) -> None:
    for number, case in enumerate(cases(n)):
        k = (max(1, n // 100), (n + 2) // 3, n, 1, max(1, n // 1000))[number]
        check_top_k(case, k)


@pytest.mark.parametrize("n", [1, 255, 1000, 9001])
def test_sampled_top_k(n: int) -> None:
    for number, case in enumerate(cases(n)):
        k = (max(1, n // 100), max(1, n // 10), n, 1, max(1, n // 3))[number]
        check_top_k(case, k, exact=False)


@given(case=fed(), share=st.sampled_from([0.001, 0.01, 0.3, 1.0]), exact=st.booleans())
@few
def test_top_k_of_any_numbers(case: Case, share: float, exact: bool) -> None:
    check_top_k(case, max(1, int(share * case.n)), exact)


@pytest.mark.parametrize("kind", ["constant", "zeros", "ties", "bits", "tiny"])
def test_among_equals_the_first_ones_win(kind: str) -> None:
    check_top_k(Case(values(kind, 9001, 1)), 4200)


@pytest.mark.parametrize(("n", "k"), [(66_000, 20), (66_000, 1)], ids=["16 bits", "32 bits"])
def test_wide_offsets(n: int, k: int) -> None:
    """Entries on both sides of a chunk's end, which no program's end is."""
    x = values("normal", n, 1)
    x[65_530:65_540] += torch.arange(9.0, -1.0, -1.0)
    check_top_k(Case(x, values("normal", n, 2), 0.5, "own"), k)


def test_samples_that_say_too_little_are_not_heeded() -> None:
    """One sample in 16, and none is near the few that are large."""
    x = torch.full((5000,), 1e-3)
    x[torch.arange(7, 5000, 499)] = 1.0
    check_top_k(Case(x, rest="x"), 5, exact=False)


def test_never_more_than_k_are_sampled() -> None:
    """What the samples do not see is large, and so are as many of them as may be."""
    n, k = 9001, 2000
    seen = _strata(n // (n // 16), n // 16)
    x = values("normal", n, 1).sign()
    x[seen[75:]] = 1e-3
    check_top_k(Case(x, rest="own"), k, exact=False)
    payload = some_bytes(indices_of(n, k, False).nbytes + 4 * k)
    kernels.top_k_encode(Feed(there(x)), k, mine := there(payload), False)
    indices = reference.sparse_indices(mine.cpu(), n, k, False)
    assert torch.equal(indices, (x.abs() == 1).nonzero().view(-1)[:k])


@pytest.mark.parametrize("n", SIZES)
def test_drawn_entries(n: int) -> None:
    for number, case in enumerate(cases(n)):
        k = (max(1, n // 100), (n + 2) // 3, n, 1, max(1, n // 7))[number]
        check_drawn(case, k, (0, 1, 2**31, 2**63, 2**64 - 1)[number])


@given(case=fed(), seed=SEEDS, share=st.floats(0, 1))
@few
def test_drawn_entries_of_any_numbers(case: Case, seed: int, share: float) -> None:
    check_drawn(case, max(1, int(share * case.n)), seed)


def check_drawn(case: Case, k: int, seed: int) -> None:
    n, feeds = case.n, (case.feed(), case.feed(DEVICE))
    assert same(kernels.draw(n, k, seed, DEVICE), reference.draw(n, k, seed))
    theirs, mine = torch.zeros(k), torch.zeros(k, device=DEVICE)
    expected = reference.draw_encode(feeds[0], k, seed, theirs)
    assert bool(kernels.draw_encode(feeds[1], k, seed, mine)) == expected
    assert unchanged(feeds[1], case)
    if not expected:
        return
    assert same(mine, theirs)
    assert same(feeds[1].rest, feeds[0].rest)
    for scaled in (False, True):
        out = values("normal", n, 3)
        added = there(out)
        reference.draw_decode_add(theirs, seed, scaled, out, 0.7)
        kernels.draw_decode_add(mine, seed, scaled, added, 0.7)
        assert same(added, out)


def test_draws_that_cannot_be() -> None:
    for n, k, seed in ((5, 0, 1), (5, 6, 1), (1 << 32, 1, 1), (5, 1, 1 << 64), (5, 1, -1)):
        with pytest.raises(UsageError, match="expected"):
            kernels.draw(n, k, seed, DEVICE)


CODINGS = (
    Coding(torch.float16),
    Coding(torch.bfloat16),
    Coding(INT8, 256, 7),
    Coding(INT4, 64),
    Coding(E5M2, 3),
    Coding(None, 256),
)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("exact", [True, False])
def test_coded_values(coding: Coding, exact: bool) -> None:
    for case, k in zip(cases(5000), (50, 1700, 5000, 1, 5), strict=True):
        theirs = some_bytes(indices_of(case.n, k, exact).nbytes + coding.nbytes(k))
        feeds, mine = (case.feed(), case.feed(DEVICE)), there(theirs)
        expected = reference.coded_encode(feeds[0], k, theirs, coding, exact)
        assert int(kernels.coded_encode(feeds[1], k, mine, coding, exact)) == expected
        if expected >= 0:
            assert coding.to is None or (same(mine, theirs) and same(feeds[1].rest, feeds[0].rest))
            out, added = values("normal", case.n, 3), there(values("normal", case.n, 3))
            reference.coded_decode_add(mine.cpu(), k, coding, out, 0.3, exact)
            kernels.coded_decode_add(mine, k, coding, added, 0.3, exact)
            assert same(added, out)
            assert coding.to is not None or kept(case, out, feeds[1].rest)


def kept(case: Case, decoded: torch.Tensor, rest: torch.Tensor | None) -> bool:
    """What was added, at a weight of 0.3, is what rest lacks; means may differ in the last place."""
    if rest is None:
        return True
    total, _ = reference.total(case.feed())
    return torch.allclose((decoded - values("normal", case.n, 3)) / 0.3, total - rest.cpu(), atol=1e-5)
