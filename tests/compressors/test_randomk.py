"""Random-k: the same entries on all ranks, each subset equally likely."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from gradwire import RandomK
from gradwire.compressors.kernels import draw
from gradwire.compressors.seeds import derive
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import context


def support(codec: RandomK, x: torch.Tensor, **options: int) -> list[int]:
    payload = codec.compress(x, {}, context(x, **options)).payload
    return codec.decompress(payload, context(x, **options)).nonzero().view(-1).tolist()


def test_all_ranks_draw_the_same_entries_and_every_step_draws_others() -> None:
    codec, x = RandomK(ratio=0.1), torch.ones(1000)
    assert support(codec, x, rank=0) == support(codec, x, rank=3)
    assert support(codec, x, step=0) != support(codec, x, step=1)
    assert support(codec, x, seed=0) != support(codec, x, seed=1)
    assert len(support(codec, x)) == 100


def test_values_are_scaled_only_without_error_feedback() -> None:
    x = torch.ones(1000)
    for codec, value in ((RandomK(ratio=0.1), 1.0), (RandomK(ratio=0.1, error_feedback=False), 10.0)):
        decoded = codec.decompress(codec.compress(x, {}, context(x)).payload, context(x))
        assert decoded.unique().tolist() == [0.0, value]


@given(numel=st.integers(1, 3000), share=st.floats(0, 1), seed=st.integers(0, 2**63 - 1))
def test_samples_are_distinct_ascending_and_in_range(numel: int, share: float, seed: int) -> None:
    k = max(1, int(share * numel))
    drawn = draw(numel, k, seed)
    assert drawn.numel() == k
    assert bool((drawn[1:] > drawn[:-1]).all())
    assert 0 <= int(drawn[0]) <= int(drawn[-1]) < numel


@pytest.mark.parametrize(("numel", "k", "subsets"), [(5, 2, 10), (5, 3, 10), (4, 1, 4), (6, 5, 6)])
def test_every_subset_is_equally_likely(numel: int, k: int, subsets: int) -> None:
    rounds = 400 * subsets
    seen = Counter(tuple(draw(numel, k, derive("test", seed)).tolist()) for seed in range(rounds))
    assert len(seen) == subsets
    assert all(abs(times - 400) < 5 * 20 for times in seen.values())


def test_the_stream_is_the_same_everywhere() -> None:
    assert derive(0, "layer.weight", 3) == 5497119911327207537
    assert draw(1000, 5, 42).tolist() == [267, 406, 529, 875, 910]
    assert derive("1") != derive(1)
    assert derive("a", "b") != derive("ab")
