"""The parts of a flat bucket, its padding, and cuts: together they cover it, each element once."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from gradwire import UsageError
from gradwire.backends import Part
from gradwire.backends.parts import check_parts, cut_at, gaps
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def filled(draw: st.DrawFn) -> tuple[list[Part], int]:
    """Pieces of tensors in any order, with and without padding; and the bucket's length."""
    parts, start = [], draw(st.integers(0, 3))
    for number in range(draw(st.integers(0, 5))):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        cuts = sorted(draw(st.lists(st.integers(0, math.prod(shape)), min_size=2, max_size=5)))
        for low, high in pairwise(cuts):
            parts.append(Part(f"t{number}", shape, start, high - low, low))
            start += high - low + draw(st.integers(0, 3))
    return draw(st.permutations(parts)), start


@given(filled())
def test_parts_and_gaps_cover_the_bucket_once(bucket: tuple[list[Part], int]) -> None:
    parts, numel = bucket
    ordered = check_parts(parts, numel)
    seen = torch.zeros(numel, dtype=torch.int64)
    for part in ordered:
        seen[part.start : part.stop] += 1
    for start, stop in gaps([(part.start, part.stop) for part in ordered], 0, numel):
        assert start < stop
        seen[start:stop] += 1
    assert seen.tolist() == [1] * numel
    assert sum(part.numel for part in ordered) == sum(part.numel for part in parts)


@given(filled(), st.data())
def test_a_cut_gives_every_element_to_its_owner(bucket: tuple[list[Part], int], data: st.DataObject) -> None:
    parts, numel = bucket
    inner = data.draw(st.lists(st.integers(0, numel), max_size=6))
    bounds = [0, *sorted(inner), numel]
    ordered = check_parts(parts, numel)
    elements = {(part.name, part.offset + i): part.start + i for part in ordered for i in range(part.numel)}
    for rank, part in cut_at(ordered, bounds):
        assert part.numel > 0
        assert bounds[rank] <= part.start
        assert part.stop <= bounds[rank + 1]
        for index in range(part.numel):
            assert elements.pop((part.name, part.offset + index)) == part.start + index
    assert not elements


@given(filled(), st.data())
def test_gaps_of_a_window_are_those_of_the_bucket(bucket: tuple[list[Part], int], data: st.DataObject) -> None:
    parts, numel = bucket
    low, high = sorted((data.draw(st.integers(0, numel)), data.draw(st.integers(0, numel))))
    covered = [(part.start, part.stop) for part in check_parts(parts, numel)]
    everywhere = {i for start, stop in gaps(covered, 0, numel) for i in range(start, stop)}
    inside = {i for start, stop in gaps(covered, low, high) for i in range(start, stop)}
    assert inside == everywhere & set(range(low, high))


def test_a_piece_has_a_name_and_a_shape_of_its_own() -> None:
    whole, piece = Part("w", (4, 3), 0, 12), Part("w", (4, 3), 5, 6, 2)
    assert whole.meta(torch.float32) == piece.tensor(torch.float32)
    assert piece.meta(torch.bfloat16).name == "w[2:8]"
    assert piece.meta(torch.bfloat16).shape == (6,)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([Part("w", (4,), 7, 4)], "the bucket has 10 elements"),
        ([Part("w", (4,), -1, 4)], "does not fit"),
        ([Part("w", (4,), 0, 5)], "the tensor 4"),
        ([Part("w", (4,), 0, 3, 2)], "the tensor 4"),
        ([Part("w", (4,), 0, 4, -1)], "does not fit"),
        ([Part("w", (4,), 3, -1)], "does not fit"),
        ([Part("w", (4,), 0, 4), Part("v", (4,), 3, 4)], "overlap in the bucket"),
        ([Part("w", (8,), 0, 4), Part("w", (8,), 4, 4, 3)], "of one name"),
        ([Part("w", (8,), 0, 4), Part("w", (2, 4), 4, 4, 4)], "of one name"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: list[Part], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_parts(parts, 10)
