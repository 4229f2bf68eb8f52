"""Blocks that share a scale, cut into tiles: several short blocks in each, or a piece of a long one."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..layout import SCALE_BYTES, blocks_of
from .launching import TILE, launch

__all__ = ["Tiles", "acceptable", "add_to", "decode_check", "sections", "tile", "tiles_of"]

#: the longest block that one program holds
_WIDEST = 8192


class Tiles(NamedTuple):
    """How n elements in blocks are spread over programs.

    Attributes:
        numel: elements.
        block: elements per scale, at most all.
        blocks: how many there are.
        pieces: programs that share a block.
        rows: blocks in a tile.
        cols: elements of each block in a tile, a power of two.
        group: neighbours that are packed together; `cols` is a multiple, and so is `block` unless it is the only one.
    """

    numel: int
    block: int
    blocks: int
    pieces: int
    rows: int
    cols: int
    group: int

    @property
    def programs(self) -> int:
        return blocks_of(self.blocks, self.rows) * self.pieces

    @property
    def whole(self) -> bool:
        """Whether a program holds all of a block."""
        return self.pieces == 1

    def split(self) -> Tiles:
        """The same blocks in pieces of `TILE` elements, one in a tile."""
        return self._replace(pieces=blocks_of(self.block, TILE), rows=1, cols=TILE)

    def launch(self, kernel: object, first: torch.Tensor, *args: object, **constants: object) -> None:
        """Start a kernel on these tiles, which takes the arguments of `tile` last."""
        shape = {"ROWS": self.rows, "COLS": self.cols, "GROUP": self.group}
        launch(kernel, self.programs, first, *args, self.numel, self.block, **constants, **shape)


def tiles_of(numel: int, block: int, group: int) -> Tiles:
    """Of whole blocks as far as they fit in; then tiles have the same size, so that few forms are compiled."""
    block = min(block, numel)
    cols = max(group, 1 << (block - 1).bit_length())
    tiles = Tiles(numel, block, blocks_of(numel, block), 1, max(1, TILE // cols), cols, group)
    return tiles if cols <= _WIDEST else tiles.split()


def sections(payload: torch.Tensor, tiles: Tiles) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a payload: a scale per block (fp32), and the bytes behind them."""
    end = SCALE_BYTES * tiles.blocks
    return payload[:end].view(torch.float32), payload[end:]


def decode_check(tiles: Tiles, scales: torch.Tensor, out: torch.Tensor) -> bool:
    """`out[0]` becomes NaN, and stays so whatever is added, if a scale is negative, infinite or NaN.

    Returns:
        True if that is left to the decoder, a single program: see `add_to`.
    """
    if tiles.programs == 1:
        return True
    launch(_check_scales, blocks_of(scales.numel(), TILE), scales, out, scales.numel(), TILE=TILE)
    return False


@triton.jit
def tile(n: tl.tensor, block: tl.tensor, ROWS: tl.constexpr, COLS: tl.constexpr, GROUP: tl.constexpr) -> tuple:
    """Which elements this program has.

    Returns:
        The tile's blocks [ROWS]; where its groups begin, and which of them exist [ROWS, COLS / GROUP]; its elements,
        and which of them exist [ROWS, COLS / GROUP, GROUP]. Numbers are int64.
    """
    pieces = tl.cdiv(block, COLS)
    program = tl.program_id(0).to(tl.int64)
    rows = program // pieces * ROWS + tl.arange(0, ROWS)
    columns = program % pieces * COLS + tl.arange(0, COLS // GROUP) * GROUP
    lanes = tl.arange(0, GROUP)[None, None, :]
    starts = rows[:, None] * block + columns[None, :]
    there = (columns < block)[None, :] & (starts < n)
    at = starts[:, :, None] + lanes
    return rows, starts, there, at, (columns[None, :, None] + lanes < block) & (at < n)


@triton.jit
def acceptable(scales: tl.tensor) -> tl.tensor:
    """Which of them an encoder may have written."""
    return (scales >= 0) & (scales < float("inf"))


@triton.jit
def add_to(
    out: tl.tensor, at: tl.tensor, mask: tl.tensor, added: tl.tensor, scales: tl.tensor, ALONE: tl.constexpr
) -> None:
    """Add to a tile; NaN to the first of all elements, if this program has all scales and one is bad."""
    if ALONE:
        bad = tl.min(acceptable(scales).to(tl.int32), axis=0) == 0
        added = tl.where((at == 0) & bad, float("nan"), added)
    tl.store(out + at, tl.load(out + at, mask=mask, other=0.0) + added, mask=mask)


@triton.jit
def _check_scales(scales: tl.tensor, out: tl.tensor, blocks: tl.tensor, TILE: tl.constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    fine = acceptable(tl.load(scales + at, mask=at < blocks, other=0.0))
    tl.store(out, float("nan"), mask=tl.min(fine.to(tl.int32), axis=0) == 0)
