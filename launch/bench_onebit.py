"""A rank of `gradwire bench onebit`: `python -m gradwire.launch.bench_onebit STEPS REPORT`, under torchrun.

With DeepSpeed 0.19.6, the last release that has a 1-bit all-reduce of its own, first on the path of imports.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["NUMEL", "main"]

NUMEL = 4 << 20
WARM_UP = 3
#: ranks up to which our numbers are those of DeepSpeed bit for bit; beyond, sums are added in another order
EXACT_RANKS = 4


@dataclass
class Row:
    """One way to average a buffer over the ranks, and what came of it."""

    name: str
    average: Callable[[torch.Tensor], torch.Tensor]
    sent_bytes: int
    errors: list[torch.Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    last: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    total: torch.Tensor = field(default_factory=lambda: torch.zeros(NUMEL))

    def call(self, values: torch.Tensor) -> None:
        buffer = values.clone()
        dist.barrier()
        begun = time.perf_counter()
        self.last = self.average(buffer)
        self.seconds.append(time.perf_counter() - begun)
        self.total += self.last


def main(steps: int, report: Path) -> None:
    """Measure all rows interleaved; rank 0 writes the report."""
    start()
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(dist.get_rank()))
    rows = [gloo(), old(), ours()]
    for _ in range(WARM_UP + steps):
        for row in rows:
            row.call(values)
    verify(rows, values)
    if dist.get_rank() == 0:
        report.write_text(json.dumps([summary(row, steps) for row in rows]))
    dist.destroy_process_group()


def start() -> None:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # takes minutes to compile, and is for inference
    deepspeed.init_distributed("gloo", verbose=False)


def gloo() -> Row:
    """The sum that DeepSpeed's engine takes of gradients, and the division."""

    def average(buffer: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(buffer)
        return buffer.div_(dist.get_world_size())

    return Row("Gloo, fp32", average, 2 * 4 * NUMEL * (dist.get_world_size() - 1) // dist.get_world_size())


def old() -> Row:
    """DeepSpeed's own code, with numpy in the place of cupy."""
    from .old_nccl import make_backend

    backend, errors = make_backend(), make_errors()

    def average(buffer: torch.Tensor) -> torch.Tensor:
        return backend.compressed_allreduce(buffer, *errors, 0)

    return Row("DeepSpeed 0.19.6", average, onebit_bytes(errors[1]), errors)


def ours() -> Row:
    from ..backends import TorchTransport
    from ..deepspeed_comp import compressed_allreduce

    transport, (worker, server) = TorchTransport(), make_errors()

    def average(buffer: torch.Tensor) -> torch.Tensor:
        return compressed_allreduce(buffer, worker, server, transport, count_padding=True)

    return Row("gradwire", average, onebit_bytes(server), [worker, server])


def make_errors() -> list[torch.Tensor]:
    """Of worker and server."""
    ranks = dist.get_world_size()
    multiple = ranks * math.lcm(ranks, 8)
    padded = -(-NUMEL // multiple) * multiple
    return [torch.zeros(padded), torch.zeros(padded // ranks)]


def onebit_bytes(server_error: torch.Tensor) -> int:
    """A scale and the signs of a chunk to every other rank, in both phases."""
    return 2 * (dist.get_world_size() - 1) * (4 + server_error.numel() // 8)


def verify(rows: list[Row], values: torch.Tensor) -> None:
    """Ranks agree; old and new agree; all results together, and what is still owed, are the mean times the calls."""
    mean = values.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    for row in rows:
        check(bool(row.last.isfinite().all()), row, "is not finite")
        check(same_on_all_ranks(row.last), row, "differs between ranks")
        expected = mean * len(row.seconds)
        error = float((row.total + owed(row) - expected).norm() / expected.norm())
        check(error < 1e-3, row, f"is {error:.1%} away from the mean of all ranks")
    _, before, now = rows
    exact = dist.get_world_size() <= EXACT_RANKS
    equal = torch.equal(before.last, now.last) if exact else torch.allclose(before.last, now.last, rtol=1e-4)
    check(equal, now, "differs from the old code's")


def check(fine: bool, row: Row, fault: str) -> None:
    if not fine:
        raise SystemExit(f"{row.name}: the result {fault}")


def same_on_all_ranks(tensor: torch.Tensor) -> bool:
    digest = tensor.view(torch.int32).sum(dtype=torch.int64).view(1)
    digests = [torch.zeros_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, digest)
    return all(torch.equal(other, digest) for other in digests)


def owed(row: Row) -> torch.Tensor:
    """What both errors keep back, as the mean that is still to come."""
    if not row.errors:
        return torch.zeros(())
    worker, server = row.errors
    pending = worker / dist.get_world_size()
    pending.view(dist.get_world_size(), -1)[dist.get_rank()] += server
    dist.all_reduce(pending)
    return pending[:NUMEL]


def summary(row: Row, steps: int) -> dict[str, Any]:
    return {"row": row.name, "step_s": statistics.median(row.seconds[-steps:]), "sent_bytes": row.sent_bytes}


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
