"""Gradients whose elements can be told apart, and what a flat tensor holds of them."""

from __future__ import annotations

import math

import torch
from gradwire.backends import Part
from gradwire.backends.parts import check_parts
from gradwire.deepspeed_comp.gradients.regions import Tensor
from hypothesis import strategies as st

__all__ = ["assert_carried", "named", "numbered", "shapes"]

shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)


def named(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    return [Tensor(f"p{number}", shape) for number, shape in enumerate(shapes)]


def numbered(tensors: list[Tensor]) -> list[torch.Tensor]:
    """Gradients all of whose elements differ."""
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    values = torch.arange(1.0, sum(sizes) + 1).split(sizes)
    return [part.clone().view(tensor.shape) for part, tensor in zip(values, tensors, strict=True)]


def assert_carried(
    flat: torch.Tensor, parts: tuple[Part, ...], gradients: dict[str, torch.Tensor], *, padded: bool = False
) -> None:
    """Every part of `flat` is the run of a gradient that it says; all else is zero, or padding."""
    check_parts(parts, flat.numel())
    rest = flat.clone()
    for part in parts:
        flattened = gradients[part.name].reshape(-1)
        assert part.shape == tuple(gradients[part.name].shape)
        assert torch.equal(flat[part.start : part.stop], flattened[part.offset : part.end])
        rest[part.start : part.stop] = 0
    assert padded or not rest.any()
