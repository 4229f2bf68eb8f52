"""Calls of DeepSpeed's 1-bit all-reduce by ranks, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from gradwire.backends import Transport
from gradwire.deepspeed_comp.compressed_allreduce import compressed_allreduce, error_sizes
from support.compressing import make_values

__all__ = ["Rank", "errors", "play", "values"]


class Rank(NamedTuple):
    """What a rank holds after a call."""

    result: torch.Tensor
    worker_error: torch.Tensor
    server_error: torch.Tensor


def errors(numel: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    worker, server = error_sizes(numel, world_size)
    return torch.zeros(worker), torch.zeros(server)


def values(numel: int, rank: int, step: int = 0, kind: str = "normal") -> torch.Tensor:
    return make_values(kind, numel, 1000 * step + rank)


def play(
    buffers: Callable[[int, int], torch.Tensor], numel: int, steps: int, **options: Any
) -> Callable[[Transport], list[Rank]]:
    """What every rank does: `steps` calls, with copies of what it holds after each."""

    def main(transport: Transport) -> list[Rank]:
        held, after = errors(numel, transport.world_size), []
        for step in range(steps):
            result = compressed_allreduce(buffers(transport.rank, step), *held, transport, **options)
            after.append(Rank(result, *(error.clone() for error in held)))
        return after

    return main
