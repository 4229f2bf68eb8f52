"""Entries that all ranks draw alike: one from each of k runs."""

from __future__ import annotations

import torch

from ...errors import UsageError
from ..feed import Feed
from .dense import total
from .philox import words

__all__ = ["check_draw", "draw", "draw_decode_add", "draw_encode"]

#: runs are shorter: a word of 32 bits times their length has 63
_LONGEST = 1 << 31


def draw(numel: int, k: int, seed: int, device: torch.device | None = None) -> torch.Tensor:
    """One place in each of `k` runs that cover [0, numel), ascending (int64).

    The first `numel % k` runs are one element longer than the others. Run j has its place at word j of
    `philox.words`, times its length, divided by 2^32.

    Args:
        numel: elements in all.
        k: runs, 1 to `numel`.
        seed: 64 bits.
        device: where the places are wanted.

    Raises:
        UsageError: k is none of these, or so small that a run has 2^31 elements.
    """
    return _places(numel, k, seed, device)[0]


def draw_encode(feed: Feed, k: int, seed: int, out: torch.Tensor) -> bool:
    """`out` = the elements at the places that `draw` gives, where `feed.rest` has zeros; False if not finite."""
    flat, finite = total(feed)
    if not finite:
        return False
    places = draw(flat.numel(), k, seed, flat.device)
    torch.index_select(flat, 0, places, out=out)
    if feed.rest is not None:
        feed.rest[places] = 0
    return True


def draw_decode_add(values: torch.Tensor, seed: int, scaled: bool, out: torch.Tensor, weight: float) -> None:
    """`out += weight * value` at the places that `draw` gives for as many; scaled: also times its run's length."""
    places, lengths = _places(out.numel(), values.numel(), seed, out.device)
    added = values * weight
    out.index_add_(0, places, added * lengths if scaled else added)


def check_draw(numel: int, k: int, seed: int) -> None:
    """What `draw` refuses."""
    if not 1 <= k <= numel or numel // k >= _LONGEST or not 0 <= seed < 1 << 64:
        raise UsageError(f"k is {k} and the seed {seed}, expected {numel // _LONGEST + 1} to {numel}, and 64 bits")


def _places(numel: int, k: int, seed: int, device: torch.device | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The places, and how long their runs are."""
    check_draw(numel, k, seed)
    shortest, longer = divmod(numel, k)
    run = torch.arange(k, device=device)
    lengths = shortest + (run < longer).long()
    starts = run * shortest + run.clamp(max=longer)
    return starts + (words(seed, 0, k, run.device) * lengths >> 32), lengths
