"""DeepSpeed's 1-bit all-reduce in plain numpy, all ranks at once: the model that the real one is compared with.

Written from the description of the algorithm, not from its code. Only the norm is not modelled: the order in which
squares are summed decides its last bit, so the caller hands in the norm to use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Face", "Floats", "Outcome", "check_face", "onebit_allreduce", "torch_norm"]

Floats = npt.NDArray[np.float32]
Norm = Callable[[Floats], np.float32]


class Face(Protocol):
    """What DeepSpeed's communication backends look like."""

    rank: int
    size: int

    def compressed_allreduce(
        self, buffer_m: torch.Tensor, worker_error: torch.Tensor, server_error: torch.Tensor, local_rank: int
    ) -> torch.Tensor: ...


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


def torch_norm(values: Floats, order: int = 2) -> np.float32:
    return torch.linalg.vector_norm(torch.from_numpy(values), order).numpy()[()]


def check_face(face: Face, numel: int, steps: int = 3) -> None:
    """Every bit of a few calls, made by all ranks at once, against the model."""
    padded = -(-numel // (8 * face.size)) * 8 * face.size
    worker, server = torch.zeros(padded), torch.zeros(padded // face.size)
    workers: list[Floats] = [np.zeros(padded, np.float32)] * face.size
    servers: list[Floats] = [np.zeros(padded // face.size, np.float32)] * face.size
    for step in range(steps):
        buffers = [_normal(numel, 100 * step + rank) for rank in range(face.size)]
        result, workers, servers = onebit_allreduce([one.numpy() for one in buffers], workers, servers, torch_norm)
        mine = face.compressed_allreduce(buffers[face.rank], worker, server, 0)
        for tensor, expected in ((mine, result), (worker, workers[face.rank]), (server, servers[face.rank])):
            assert tensor.numpy().tobytes() == expected.tobytes()


def _normal(numel: int, seed: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))
