"""Top-k: exact, with ties to the lowest index, and right at every index width."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradwire import TopK
from gradwire.compressors import kernels
from gradwire.compressors.kernels.reference.select import SAMPLES
from gradwire.compressors.options import count
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import VALUES, context, make_values


def naive_top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """By a full stable sort: what `top_k` must equal."""
    order = np.argsort(-np.abs(x.numpy()), kind="stable")
    return torch.from_numpy(np.sort(order[:k]))


def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """The places that an encoder writes, read again."""
    payload = torch.empty(kernels.indices_of(x.numel(), k).nbytes + 4 * k, dtype=torch.uint8)
    assert kernels.top_k_encode(kernels.Feed(x), k, payload)
    return kernels.sparse_indices(payload, x.numel(), k)


@given(
    kind=st.sampled_from(VALUES), numel=st.integers(1, 3000), seed=st.integers(0, 2**31), share=st.floats(0.0001, 1.0)
)
def test_it_selects_what_a_full_sort_selects(kind: str, numel: int, seed: int, share: float) -> None:
    x = make_values(kind, numel, seed)
    k = count(share, numel)
    assert torch.equal(top_k(x, k), naive_top_k(x, k))


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("k", [1, 2, 100, 2_000, 60_000, 90_000, 150_000, 199_999, 200_000])
def test_it_selects_what_a_full_sort_selects_from_large_tensors(kind: str, k: int) -> None:
    x = make_values(kind, 200_000, seed=7)
    assert x.numel() > SAMPLES
    assert torch.equal(top_k(x, k), naive_top_k(x, k))


def test_samples_that_mislead_do_not_matter() -> None:
    x = torch.zeros(200_000)
    x[:: 200_000 // SAMPLES] = torch.linspace(1, 2, len(x[:: 200_000 // SAMPLES]))
    assert torch.equal(top_k(x, 80_000), naive_top_k(x, 80_000))
    hidden = torch.ones(200_000)
    hidden[1::3] = 5.0
    assert torch.equal(top_k(hidden, 1_000), naive_top_k(hidden, 1_000))


@pytest.mark.parametrize("index", [0, 32_767, 32_768, 65_535, 65_536, 70_000, 2**24 + 1])
@pytest.mark.parametrize("behind", [0, 1, 70_000])
def test_the_only_entry_comes_back_to_its_place(index: int, behind: int) -> None:
    x = torch.zeros(index + 1 + behind)
    x[index] = -2.5
    codec = TopK(ratio=1e-9)
    decoded = codec.decompress(codec.compress(x, {}, context(x)).payload, context(x))
    assert decoded.nonzero().tolist() == [[index]]
    assert float(decoded[index]) == -2.5


@pytest.mark.parametrize("ratio", [1, 0.5, 0.1, 0.01, 1e-6])
@pytest.mark.parametrize("numel", [0, 1, 2, 9, 10, 1000, 70_000])
def test_number_of_values_on_the_wire(ratio: float, numel: int) -> None:
    codec = TopK(ratio=ratio)
    x = torch.arange(1.0, numel + 1)
    payload = codec.compress(x, {}, context(x)).payload
    expected = {0: 0}.get(numel, max(1, -(-numel * round(ratio * 10**6) // 10**6)))
    assert codec.entries(context(x).meta) == expected
    shortest = min(-(-numel // 255) + expected, 2 * (-(-numel // 65_535) + expected), 4 * expected)
    assert payload.numel() == -(-shortest // 4) * 4 + 4 * expected
    if numel:
        assert kernels.sparse_indices(payload, numel, expected).numel() == expected


@pytest.mark.parametrize(("ratio", "limit"), [(0.001, 2.1), (0.01, 1.5), (0.1, 1.1)])
def test_bytes_per_index(ratio: float, limit: float) -> None:
    """The entropy of 1 % of the places is 1.01 bytes for each."""
    numel = 25 << 20
    k = count(ratio, numel)
    assert kernels.indices_of(numel, k).nbytes / k <= limit


@pytest.mark.parametrize(
    ("ratio", "numel", "k"), [(0.1, 10, 1), (0.29, 100, 29), (0.07, 100, 7), (1e-6, 10**6, 1), (0.3, 11, 4)]
)
def test_the_ratio_counts_as_the_decimal_it_prints_as(ratio: float, numel: int, k: int) -> None:
    assert count(ratio, numel) == k


def test_among_equals_the_first_ones_win() -> None:
    x = torch.tensor([1.0, -2.0, 2.0, 1.0, -1.0, 1.0])
    codec = TopK(ratio=0.5)
    decoded = codec.decompress(codec.compress(x, {}, context(x)).payload, context(x))
    assert decoded.tolist() == [1.0, -2.0, 2.0, 0.0, 0.0, 0.0]


@given(numel=st.integers(1, 200_000), share=st.floats(1e-5, 0.2), seed=st.integers(0, 2**31))
def test_indices_survive_the_wire(numel: int, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(numel, generator=generator)[: count(share, numel)].sort().values
    assert torch.equal(top_k(torch.zeros(numel).index_fill_(0, indices, 1.0), indices.numel()), indices)
