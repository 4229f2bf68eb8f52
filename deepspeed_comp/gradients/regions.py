"""Which gradient lies where in memory, and so what a flat tensor is made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from ...backends import Part
from ...compressors.errors import UnsupportedError

__all__ = ["PADDING", "Regions", "Tensor"]


class Tensor(NamedTuple):
    """A parameter as all ranks know it; the shape is that of the whole parameter."""

    name: str
    shape: tuple[int, ...]


#: what belongs to no parameter
PADDING = Tensor("", ())


class _Region(NamedTuple):
    """Bytes from `start` to `stop`, and whose flattened gradient they hold."""

    start: int
    stop: int
    tensor: Tensor


class Regions:
    """Gradients in memory.

    Args:
        gradients: every gradient that may be part of a flat tensor, with its parameter; none twice.

    Raises:
        UnsupportedError: two parameters have one gradient.
    """

    def __init__(self, gradients: Iterable[tuple[torch.Tensor, Tensor]]) -> None:
        self._whole: dict[tuple[int, int], Tensor] = {}
        for gradient, tensor in gradients:
            if gradient.numel():
                other = self._whole.setdefault(_bytes(gradient), tensor)
                _check_same(other, tensor)
        self._ordered = [_Region(*place, tensor) for place, tensor in sorted(self._whole.items())]
        self._starts = [region.start for region in self._ordered]

    def parts(self, pieces: Sequence[torch.Tensor]) -> tuple[Part, ...]:
        """The parts of a flat tensor in which these pieces follow each other.

        A piece is one whole gradient, or a range of memory in which contiguous gradients lie one after the other.

        Raises:
            UnsupportedError: some element belongs to no gradient.
        """
        parts: list[Part] = []
        start = 0
        for piece in pieces:
            parts += self._within(piece, start) if piece.numel() else []
            start += piece.numel()
        return tuple(part for part in parts if part.name != PADDING.name)

    def _within(self, piece: torch.Tensor, start: int) -> list[Part]:
        first, last = _bytes(piece)
        whole = self._whole.get((first, last))  # of any strides: whoever flattens it brings it in order
        if whole is not None:
            return [Part(*whole, start, piece.numel())]
        size, parts, reached = piece.element_size(), list[Part](), first
        for region in self._ordered[max(0, bisect_right(self._starts, first) - 1) :]:
            low, high = max(first, region.start), min(last, region.stop)
            if low >= high or low != reached:
                break
            part = Part(*region.tensor, start + (low - first) // size, (high - low) // size)
            parts.append(part._replace(offset=(low - region.start) // size))
            reached = high
        if reached != last:
            raise UnsupportedError(
                f"DeepSpeed averages {piece.numel()} elements at once, and gradwire knows the parameters of the first "
                f"{(reached - first) // size} only; gradients that were replaced by hand are not followed"
            )
        return parts


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()


def _check_same(one: Tensor, other: Tensor) -> None:
    if one != other:
        raise UnsupportedError(
            f"the gradients of {one.name!r} and {other.name!r} are one tensor, so that gradwire cannot tell them "
            "apart: give every parameter a gradient of its own"
        )
