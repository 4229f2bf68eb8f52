"""Where things lie in payloads; docs/wire-format.md describes every byte."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

__all__ = ["Indices", "SCALE_BYTES", "blocks_of", "indices_of"]

SCALE_BYTES = 4

#: bits of an offset, and with it of a chunk's count
_WIDTHS = (8, 16)
_PLAIN = 32


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


@lru_cache(maxsize=4096)
def indices_of(numel: int, k: int) -> Indices:
    """The shortest way to write k indices below `numel`; among equals the one with the narrowest offsets."""
    forms = []
    for width in _WIDTHS:
        chunk = (1 << width) - 1
        chunks = blocks_of(numel, chunk)
        forms.append(Indices(width, chunk, chunks, _filled((chunks + k) * width // 8)))
    if numel <= 1 << _PLAIN:
        forms.append(Indices(_PLAIN, numel, 0, 4 * k))
    return min(forms, key=lambda form: form.nbytes)


def _filled(nbytes: int) -> int:
    return nbytes + -nbytes % 4
