"""Random-k: the same entries on all ranks, one from each run, each of its elements equally likely."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from gradwire import RandomK, UsageError
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


@given(numel=st.integers(1, 3000), share=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))
def test_there_is_one_in_each_run_and_runs_are_about_equal(numel: int, share: float, seed: int) -> None:
    k = max(1, int(share * numel))
    lengths = [numel // k + (run < numel % k) for run in range(k)]
    ends = torch.tensor(lengths).cumsum(0)
    drawn = draw(numel, k, seed)
    assert bool((drawn < ends).all())
    assert bool((drawn >= ends - torch.tensor(lengths)).all())


@pytest.mark.parametrize(("numel", "k", "choices"), [(5, 2, 6), (5, 3, 4), (4, 1, 4), (6, 5, 2), (9, 3, 27)])
def test_all_choices_are_equally_likely(numel: int, k: int, choices: int) -> None:
    rounds = 400 * choices
    seen = Counter(tuple(draw(numel, k, derive("test", seed)).tolist()) for seed in range(rounds))
    assert len(seen) == choices
    assert all(abs(times - 400) < 5 * 20 for times in seen.values())


@pytest.mark.parametrize("numel", [7, 100, 1009])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.7])
def test_without_error_feedback_the_expectation_is_exact(numel: int, ratio: float) -> None:
    """Also where runs differ in length: each element times its share of the draws, times the factor, is itself."""
    codec, x = RandomK(ratio=ratio, error_feedback=False), torch.arange(1.0, numel + 1)
    factors = codec.decompress(codec.compress(x, {}, context(x)).payload, context(x)) / x
    k = codec.entries(context(x).meta)
    runs = torch.tensor([float(numel // k + (run < numel % k)) for run in range(k)])
    assert torch.allclose(factors[factors > 0], runs)


def test_runs_of_2_31_elements_are_refused() -> None:
    with pytest.raises(UsageError, match=r"k is 1 .* expected 2 to 2147483648"):
        draw(1 << 31, 1, 0)


def test_the_stream_is_the_same_everywhere() -> None:
    assert derive(0, "layer.weight", 3) == 5497119911327207537
    assert draw(1000, 5, 42).tolist() == [122, 293, 414, 668, 997]
    assert derive("1") != derive(1)
    assert derive("a", "b") != derive("ab")
