"""Which gradient a piece of memory belongs to."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from gradwire import UnsupportedError
from gradwire.backends import Part
from gradwire.deepspeed_comp.gradients.regions import PADDING, Regions, Tensor
from hypothesis import given
from hypothesis import strategies as st
from support.flattened import assert_carried, named, numbered, shapes


def named_again(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor._replace(name=f"q{tensor.name}") for tensor in tensors]


@given(shapes, st.data())
def test_gradients_and_ranges_of_a_buffer_are_found(shapes: list[tuple[int, ...]], data: st.DataObject) -> None:
    tensors = named(shapes)
    gradients = numbered(tensors)
    buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])
    sizes = [gradient.numel() for gradient in gradients]
    inside = [view.view(tensor.shape) for view, tensor in zip(buffer.split(sizes), tensors, strict=True)]
    cuts = sorted(data.draw(st.lists(st.integers(0, buffer.numel()), max_size=4)))
    ends = [0, *cuts, buffer.numel()]
    ranges = [buffer[low:high] for low, high in pairwise(ends)]
    pieces = data.draw(st.permutations([*ranges, *gradients]))
    regions = Regions([*zip(inside, tensors, strict=True), *zip(gradients, named_again(tensors), strict=True)])
    known = {tensor.name: gradient for tensor, gradient in zip(tensors, inside, strict=True)}
    known |= {tensor.name: gradient for tensor, gradient in zip(named_again(tensors), gradients, strict=True)}
    flat = torch.cat([piece.reshape(-1) for piece in pieces])
    assert_carried(flat, regions.parts(pieces), known)


def test_a_gradient_of_any_strides_is_whole() -> None:
    gradient = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
    regions = Regions([(gradient, Tensor("p", (4, 2, 3))), (torch.ones(3), Tensor("q", (3,)))])
    assert regions.parts([gradient]) == (Part("p", (4, 2, 3), 0, 24),)


def test_padding_that_is_known_belongs_to_nobody() -> None:
    flat = torch.zeros(10)
    regions = Regions([(flat[:7], Tensor("p", (7,))), (flat[7:], PADDING)])
    assert regions.parts([flat]) == (Part("p", (7,), 0, 7),)
    assert regions.parts([flat[7:]]) == ()


@pytest.mark.parametrize(
    ("low", "high", "known"), [(0, 10, 7), (6, 10, 1), (8, 9, 0)], ids=["behind", "cut", "outside"]
)
def test_an_element_of_no_gradient_is_an_error(low: int, high: int, known: int) -> None:
    flat = torch.zeros(10)
    regions = Regions([(flat[:7], Tensor("p", (7,)))])
    text = f"averages {high - low} elements at once, and gradwire knows the parameters of the first {known} only"
    with pytest.raises(UnsupportedError, match=text):
        regions.parts([flat[low:high]])


def test_a_hole_between_gradients_is_an_error() -> None:
    flat = torch.zeros(10)
    regions = Regions([(flat[:3], Tensor("p", (3,))), (flat[5:], Tensor("q", (5,)))])
    with pytest.raises(UnsupportedError, match="of the first 3 only"):
        regions.parts([flat])


def test_one_gradient_of_two_parameters_is_an_error() -> None:
    gradient = torch.zeros(4)
    with pytest.raises(UnsupportedError, match=r"the gradients of 'p' and 'q' are one tensor.*a gradient of its own"):
        Regions([(gradient, Tensor("p", (4,))), (gradient, Tensor("q", (4,)))])
