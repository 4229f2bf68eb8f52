"""Where things lie in payloads; docs/wire-format.md describes every byte."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from ..errors import UsageError

__all__ = [
    "Coding",
    "E4M3",
    "E5M2",
    "Grid",
    "INT4",
    "INT8",
    "Indices",
    "PAIR_BYTES",
    "SCALE_BYTES",
    "blocks_of",
    "indices_of",
    "levels_bytes",
    "sign_bytes",
    "two_bit_bytes",
]

SCALE_BYTES = 4
#: of the two magnitudes of a block of 2-bit elements
PAIR_BYTES = 8

#: bits of an offset, and with it of a chunk's count
_WIDTHS = (8, 16)
_PLAIN = 32


class Grid(NamedTuple):
    """The levels that elements are rounded to once they are divided by their block's scale.

    Attributes:
        name: as people write it.
        number: in csrc/kernels.h.
        bits: per element.
        most: the largest level; a block's largest magnitude comes to lie there.
    """

    name: str
    number: int
    bits: int
    most: float


INT8 = Grid("int8", 0, 8, 127.0)
INT4 = Grid("int4", 1, 4, 7.0)
E4M3 = Grid("e4m3", 2, 8, 448.0)
E5M2 = Grid("e5m2", 3, 8, 57344.0)


class Indices(NamedTuple):
    """How the places of k entries of n are written.

    Attributes:
        width: bits of an offset in its chunk, or 32: indices as they are.
        chunk: elements of a chunk, so many that an offset fits, and so does a count of all of them.
        chunks: how many there are; 0 for plain indices.
        nbytes: of counts and offsets, filled up to a multiple of 4.
    """

    width: int
    chunk: int
    chunks: int
    nbytes: int


def blocks_of(numel: int, block: int) -> int:
    """How many blocks there are; the last one may be shorter."""
    return -(-numel // block)


class Coding(NamedTuple):
    """How the values of some elements are written.

    Attributes:
        to: they are cast to fp16 or bf16; or rounded to a grid's levels; or None: two bits each.
        block: as the encoders of `levels` and `two_bit` have it.
        seed: as that of `levels`.
    """

    to: torch.dtype | Grid | None
    block: int = 1
    seed: int | None = None

    def nbytes(self, k: int) -> int:
        """Of so many."""
        if self.to is None:
            return two_bit_bytes(k, self.block)
        return levels_bytes(k, self.block, self.to) if isinstance(self.to, Grid) else k * self.to.itemsize


@lru_cache(maxsize=4096)
def sign_bytes(numel: int, block: int) -> int:
    """Of scales and bits."""
    return _blocked_bytes(numel, block, SCALE_BYTES, 1)


@lru_cache(maxsize=4096)
def two_bit_bytes(numel: int, block: int) -> int:
    """Of magnitudes and codes."""
    return _blocked_bytes(numel, block, PAIR_BYTES, 2)


@lru_cache(maxsize=4096)
def levels_bytes(numel: int, block: int, grid: Grid) -> int:
    """Of scales and levels."""
    return _blocked_bytes(numel, block, SCALE_BYTES, grid.bits)


def _blocked_bytes(numel: int, block: int, header: int, bits: int) -> int:
    """Of something per block, and so many bits per element.

    Raises:
        UsageError: a block would begin within a byte.
    """
    if block < 1 or (block * bits % 8 and block < numel):
        raise UsageError(f"block is {block}, expected a multiple of {max(1, 8 // bits)}, or at least all {numel}")
    return header * blocks_of(numel, block) + blocks_of(numel * bits, 8)


@lru_cache(maxsize=4096)
def indices_of(numel: int, k: int, exact: bool = True) -> Indices:
    """The shortest way to write k indices below `numel`; among equals the one with the narrowest offsets.

    `exact` is False if there may be fewer: then only forms with counts will do.
    """
    forms = []
    for width in _WIDTHS:
        chunk = (1 << width) - 1
        chunks = blocks_of(numel, chunk)
        forms.append(Indices(width, chunk, chunks, _filled((chunks + k) * width // 8)))
    if exact and numel <= 1 << _PLAIN:
        forms.append(Indices(_PLAIN, numel, 0, 4 * k))
    return min(forms, key=lambda form: form.nbytes)


def _filled(nbytes: int) -> int:
    return nbytes + -nbytes % 4
