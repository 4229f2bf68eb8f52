"""Elements that all ranks draw alike."""

from __future__ import annotations

import torch

from .. import reference
from ..feed import Feed
from .entry import entry, threads_for
from .records import expect, fields

__all__ = ["draw", "draw_decode_add", "draw_encode"]

_draw = entry("draw")
_draw_decode_add = entry("draw_decode_add")
_draw_encode = entry("draw_encode")


def draw(numel: int, k: int, seed: int, device: torch.device | None = None) -> torch.Tensor:
    if device is not None and device.type != "cpu":
        return reference.draw(numel, k, seed, device)
    reference.check_draw(numel, k, seed)
    places = torch.empty(k, dtype=torch.int64)
    _draw(numel, k, seed, places.data_ptr())
    return places


def draw_encode(feed: Feed, k: int, seed: int, out: torch.Tensor, threads: int | None = None) -> bool:
    what, n = fields(feed)
    reference.check_draw(n, k, seed)
    expect(out, k)
    return not _draw_encode(*what, k, seed, out.data_ptr(), threads or threads_for(n))


def draw_decode_add(
    values: torch.Tensor, seed: int, scaled: bool, out: torch.Tensor, weight: float, threads: int | None = None
) -> None:
    n, k = out.numel(), values.numel()
    reference.check_draw(n, k, seed)
    expect(out, n)
    expect(values, k)
    _draw_decode_add(values.data_ptr(), k, seed, out.data_ptr(), n, weight, threads or threads_for(n), False, scaled)
