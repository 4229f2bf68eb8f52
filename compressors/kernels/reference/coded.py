"""The largest elements, with values that are cast, or written in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..feed import Feed
from ..layout import Coding, Grid, indices_of
from .dense import cast_decode_add, cast_encode
from .levels import levels_decode_add, levels_encode
from .sparse import sparse_decode_add, top_k_encode
from .two_bit import two_bit_decode_add, two_bit_encode

__all__ = ["Parts", "coded_decode_add", "coded_encode"]

Kernel = Callable[..., Any]


def coded_encode(feed: Feed, k: int, payload: torch.Tensor, coding: Coding, exact: bool = True) -> int:
    """As `top_k_encode`, with values that are written as `coding` says; `feed.rest` keeps what these leave out.

    Returns:
        How many values saturated in a cast; -1 if the feed's sum is not finite.
    """
    return _parts.encode(feed, k, payload, coding, exact)


def coded_decode_add(
    payload: torch.Tensor, k: int, coding: Coding, out: torch.Tensor, weight: float, exact: bool = True
) -> None:
    """`out += weight * value` at the places that the payload has.

    Raises:
        PayloadError: as the decoder of the values, or `sparse_indices`; nothing was added.
    """
    _parts.decode_add(payload, k, coding, out, weight, exact)


class Parts(NamedTuple):
    """Kernels that the two above are made of, where no kernel does it in one: by way of a payload of fp32 values."""

    top_k_encode: Kernel
    sparse_decode_add: Kernel
    cast_encode: Kernel
    cast_decode_add: Kernel
    levels_encode: Kernel
    levels_decode_add: Kernel
    two_bit_encode: Kernel
    two_bit_decode_add: Kernel

    def encode(self, feed: Feed, k: int, payload: torch.Tensor, coding: Coding, exact: bool) -> Any:
        """As `coded_encode`; where verdicts are tensors, so is the result."""
        end = indices_of(feed.x.numel(), k, exact).nbytes
        plain = torch.empty(end + 4 * k, dtype=torch.uint8, device=payload.device)
        finite = self.top_k_encode(feed, k, plain, exact)
        if finite is False:
            return -1
        payload[:end] = plain[:end]
        values = plain[end:].view(torch.float32)
        saturated = self._write(Feed(values, rest=None if feed.rest is None else values), coding, payload[end:])
        if feed.rest is not None:  # which has zeros there
            self.sparse_decode_add(plain, k, feed.rest, 1.0, exact)
        return saturated if finite is True else torch.where(finite, saturated, -1)

    def decode_add(
        self, payload: torch.Tensor, k: int, coding: Coding, out: torch.Tensor, weight: float, exact: bool
    ) -> None:
        """As `coded_decode_add`."""
        end = indices_of(out.numel(), k, exact).nbytes
        plain = torch.zeros(end + 4 * k, dtype=torch.uint8, device=payload.device)
        plain[:end] = payload[:end]
        self._add(payload[end:], coding, plain[end:].view(torch.float32))
        self.sparse_decode_add(plain, k, out, weight, exact)

    def _write(self, feed: Feed, coding: Coding, section: torch.Tensor) -> int | torch.Tensor:
        """Returns how many values saturated; all are finite, or nobody asks."""
        to, block, seed = coding
        if to is None:
            self.two_bit_encode(feed, block, section)
        elif isinstance(to, Grid):
            self.levels_encode(feed, to, block, seed, section)
        else:
            return self.cast_encode(feed, 1.0, section.view(to))
        return 0

    def _add(self, section: torch.Tensor, coding: Coding, out: torch.Tensor) -> None:
        to, block, _ = coding
        if to is None:
            self.two_bit_decode_add(section, block, out, 1.0)
        elif isinstance(to, Grid):
            self.levels_decode_add(section, to, block, out, 1.0)
        else:
            self.cast_decode_add(section.view(to), out, 1.0)


_parts = Parts(
    top_k_encode,
    sparse_decode_add,
    cast_encode,
    cast_decode_add,
    levels_encode,
    levels_decode_add,
    two_bit_encode,
    two_bit_decode_add,
)
