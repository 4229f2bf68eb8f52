"""DeepSpeed's 1-bit all-reduce in plain numpy, all ranks at once: the model that the real one is compared with.

Written from the description of the algorithm, not from its code. Only the norm is not modelled: the order in which
squares are summed decides its last bit, so the caller hands in the norm to use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Outcome", "onebit_allreduce"]

Floats = npt.NDArray[np.float32]
Norm = Callable[[Floats], np.float32]


class Outcome(NamedTuple):
    """The result, which is the same on all ranks, and the errors by rank."""

    result: Floats
    worker_errors: list[Floats]
    server_errors: list[Floats]


def onebit_allreduce(
    buffers: Sequence[Floats],
    worker_errors: Sequence[Floats],
    server_errors: Sequence[Floats],
    norm: Norm,
    *,
    scale: str = "l2",
    count_padding: bool = True,
) -> Outcome:
    """One call on every rank; nothing is changed. `norm` is the one that `scale` names."""
    world, numel, padded = len(buffers), buffers[0].size, worker_errors[0].size
    counted = padded if count_padding else numel
    chunk = padded // world
    sums = [
        np.concatenate([buffer, np.zeros(padded - numel, np.float32)]) + error
        for buffer, error in zip(buffers, worker_errors, strict=True)
    ]
    workers = [encode(values, counted, norm, scale) for values in sums]
    servers = []
    for rank in range(world):
        mine = slice(rank * chunk, (rank + 1) * chunk)
        mean = np.zeros(chunk, np.float32)
        for factor, signs, _ in workers:
            mean += factor * np.float32(1 / world) * signs[mine]
        own = min(max(counted - rank * chunk, 0), chunk)
        servers.append(encode(mean + server_errors[rank], own, norm, scale))
    decoded = np.concatenate([factor * signs for factor, signs, _ in servers])
    return Outcome(decoded[:numel], [error for *_, error in workers], [error for *_, error in servers])


def encode(values: Floats, counted: int, norm: Norm, scale: str) -> tuple[np.float32, Floats, Floats]:
    """Scale, signs, and what they leave out of the first `counted` values; the others are padding."""
    kept = values[:counted]
    divisor = np.float32(max(counted, 1) if scale == "l1" else np.sqrt(max(counted, 1)))
    factor = norm(kept) / divisor
    signs = np.where(values >= 0, np.float32(1), np.float32(-1))
    error = np.zeros_like(values)
    error[:counted] = kept - factor * signs[:counted]
    return factor, signs, error
