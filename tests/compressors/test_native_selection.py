"""Native encoders of some elements, the largest and those that are drawn, write what the reference writes."""

from __future__ import annotations

import pytest
import torch
from gradwire.compressors.kernels import Feed, indices_of, native, reference
from hypothesis import given
from hypothesis import strategies as st
from support.native_cases import (
    FORMS,
    LONG,
    Fed,
    check_encoder,
    fed,
    needs_native,
    running,
    same_bits,
    some_bytes,
    values,
)

pytestmark = needs_native

SHARES = st.sampled_from([0.0, 0.0001, 0.001, 0.01, 0.1, 0.4, 0.6, 1.0])


@given(case=fed(), share=SHARES, exact=st.booleans())
def test_largest(case: Fed, share: float, exact: bool) -> None:
    k = max(1, int(share * case.n))
    check_encoder(
        case,
        some_bytes(indices_of(case.n, k, exact).nbytes + 4 * k),
        lambda feed, out: reference.top_k_encode(feed, k, out, exact),
        lambda feed, out: native.top_k_encode(feed, k, out, exact, case.threads),
    )


@given(
    case=fed(st.sampled_from([16_384, 65_535, 65_536, 131_071, 200_001])),
    share=st.sampled_from([0.02, 0.05, 0.1, 0.4]),
)
def test_sampled(case: Fed, share: float) -> None:
    """Tensors that are long enough for the samples to say something."""
    k = int(share * case.n)
    check_encoder(
        case,
        some_bytes(indices_of(case.n, k, exact=False).nbytes + 4 * k),
        lambda feed, out: reference.top_k_encode(feed, k, out, False),
        lambda feed, out: native.top_k_encode(feed, k, out, False, case.threads),
    )


@given(case=fed(), share=st.sampled_from([0.0, 0.01, 0.3, 0.9, 1.0]), seed=st.integers(0, 99))
def test_drawn(case: Fed, share: float, seed: int) -> None:
    k = max(1, int(share * case.n))
    check_encoder(
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


@pytest.mark.parametrize("isa", FORMS)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("rest", ["own", "x"])
def test_long_tensors(isa: str, offset: int, rest: str) -> None:
    case, k = Fed(values("heavy", LONG, 1), values("normal", LONG, 2), 0.9, rest, offset, isa, threads=2), LONG // 50
    check_encoder(
        case,
        torch.zeros(k),
        lambda feed, out: reference.draw_encode(feed, k, 3, out),
        lambda feed, out: native.draw_encode(feed, k, 3, out, 2),
    )
    for exact in (True, False):
        check_encoder(
            case,
            some_bytes(indices_of(LONG, k, exact).nbytes + 4 * k),
            lambda feed, out, exact=exact: reference.top_k_encode(feed, k, out, exact),
            lambda feed, out, exact=exact: native.top_k_encode(feed, k, out, exact, 2),
        )


#: what makes a sample mislead, fills lists, or makes every element a tie
UNLUCKY = {
    "ascending": lambda n: torch.linspace(1, 2, n),
    "descending": lambda n: torch.linspace(2, 1, n),
    "constant": lambda n: torch.ones(n),
    "zeros": lambda n: torch.zeros(n),
    "few": lambda n: values("few", n, 1),
    "mostly zero": lambda n: values("normal", n, 1) * (torch.arange(n) % 60 == 7),
    "mostly zero, else close to it": lambda n: (torch.arange(n) % 60 == 7) * 2.0**-149,
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
        assert reference.top_k_encode(Feed(x), k, payloads[0])
        with running(isa):
            for threads, payload in enumerate(payloads[1:], 1):
                rest = torch.empty(n)
                assert native.top_k_encode(Feed(x, rest=rest), k, payload, True, threads)
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
        assert reference.top_k_encode(Feed(x), k, payloads[0], exact=False)
        assert 1 <= reference.sparse_indices(payloads[0], n, k, exact=False).numel() <= k
        with running(isa):
            for threads, payload in enumerate(payloads[1:], 1):
                assert native.top_k_encode(Feed(x), k, payload, False, threads)
                assert same_bits(payload, payloads[0])
