"""A rank of `gradwire bench`: `python -m gradwire.launch.bench_ranks WHAT STEPS REPORT`, under horovodrun."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import shapes

__all__ = ["BENCHES"]

WARM_UP = 3


@dataclass
class Row:
    """One optimizer over its own copy of the parameters, and what was measured of it."""

    name: str
    parameters: list[torch.nn.Parameter]
    gradients: list[torch.Tensor]
    optimizer: torch.optim.Optimizer
    compression: Any
    seconds: list[float] = field(default_factory=list)

    def step(self) -> None:
        """Backward through every parameter's hook, exchange, update."""
        self.optimizer.zero_grad()
        begun = time.perf_counter()
        products = [(p * g).sum() for p, g in zip(self.parameters, self.gradients, strict=True)]
        torch.stack(products).sum().backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - begun)


def adapter() -> tuple[list[shapes.Shape], dict[str, Any]]:
    """The adapter's own cost: tensors so small that only overhead is left."""
    import horovod.torch as hvd

    from ..horovod_comp import NoCompression

    return shapes.tiny(), {"stock Horovod": hvd.Compression.none, "gradwire NoCompression": NoCompression()}


def resnet50() -> tuple[list[shapes.Shape], dict[str, Any]]:
    """A realistic amount of gradients."""
    import horovod.torch as hvd

    from ..horovod_comp import FP16, Int8, OneBit, RandomK, TopK

    return shapes.resnet50(), {
        "stock Horovod none": hvd.Compression.none,
        "stock Horovod fp16": hvd.Compression.fp16,
        "FP16()": FP16(),
        "TopK(ratio=0.01)": TopK(ratio=0.01),
        "RandomK(ratio=0.01)": RandomK(ratio=0.01),
        "OneBit()": OneBit(),
        "Int8()": Int8(),
    }


#: name, and what makes its shapes and compressions
BENCHES: dict[str, Callable[[], tuple[list[shapes.Shape], dict[str, Any]]]] = {
    "adapter": adapter,
    "resnet50": resnet50,
}


def main(what: str, steps: int, report: Path) -> None:
    """Measure all rows interleaved; rank 0 writes the report."""
    import horovod.torch as hvd

    hvd.init()
    model, compressions = BENCHES[what]()
    rows = [make_row(name, model, compression) for name, compression in compressions.items()]
    for _ in range(WARM_UP + steps):
        for row in rows:
            hvd.barrier()
            row.step()
    for row in rows:
        verify(row)
    if hvd.rank() == 0:
        report.write_text(json.dumps([summary(row, steps) for row in rows]))


def make_row(name: str, model: Sequence[shapes.Shape], compression: Any) -> Row:
    import horovod.torch as hvd

    generator = torch.Generator().manual_seed(hvd.rank())
    parameters = [torch.nn.Parameter(torch.full(shape, 0.0)) for shape in model]
    gradients = [torch.randn(shape, generator=generator) for shape in model]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=1.0),
        named_parameters=[(f"p{index}", p) for index, p in enumerate(parameters)],
        compression=compression,
    )
    return Row(name, parameters, gradients, optimizer, compression)


def verify(row: Row) -> None:
    """All ranks hold the same bits; all updates together, and what is still owed, are the mean gradient times steps."""
    import horovod.torch as hvd

    flat = torch.cat([p.detach().reshape(-1) for p in row.parameters])
    digest = flat.view(torch.int32).sum(dtype=torch.int64).view(1)
    digests = hvd.allgather(digest, name=f"verify {row.name}")
    if not bool((digests == digests[0]).all()):
        raise SystemExit(f"{row.name}: ranks hold different parameters")
    mean = hvd.allreduce(torch.cat([g.reshape(-1) for g in row.gradients]), name=f"mean {row.name}")
    expected = mean * len(row.seconds)
    error = float((owed(row) - flat - expected).norm() / expected.norm())
    if not error < 0.01:
        raise SystemExit(f"{row.name}: the parameters are {error:.1%} away from the sum of the mean gradients")


def owed(row: Row) -> torch.Tensor:
    """The residuals of all ranks, as the mean update that is still to come."""
    import horovod.torch as hvd

    from ..horovod_comp import Compression

    if not isinstance(row.compression, Compression):
        return torch.zeros(())
    (session,) = row.compression._sessions()
    parts = [session.pending(f"p{index}").reshape(-1) for index in range(len(row.parameters))]
    return hvd.allreduce(torch.cat(parts), name=f"owed {row.name}", op=hvd.Sum)


def summary(row: Row, steps: int) -> dict[str, float | str]:
    import horovod.torch as hvd

    result: dict[str, float | str] = {"row": row.name, "step_s": statistics.median(row.seconds[-steps:])}
    if not hasattr(row.compression, "statistics"):
        itemsize = 2 if row.compression is hvd.Compression.fp16 else 4
        raw = sum(g.numel() * itemsize for g in row.gradients)
        return {**result, "sent_bytes": 2 * raw * (hvd.size() - 1) // hvd.size()}
    account = row.compression.statistics
    taken = account.steps
    return {
        **result,
        "sent_bytes": account.last.sent_bytes,
        "codec_s": account.total.codec_seconds / taken,
        "wait_s": account.total.wait_seconds / taken,
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
