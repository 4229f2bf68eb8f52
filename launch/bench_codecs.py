"""`gradwire bench codecs`: how long a codec takes, as a ratio to a copy of the same gradient in the same run."""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from ..compressors import (
    BF16,
    FP16,
    Compressor,
    Context,
    ErrorFeedback,
    Int8,
    OneBit,
    RandomK,
    State,
    TensorMeta,
    TopK,
    format_spec,
    kernels,
)
from ..compressors.memory import RESIDUAL
from .arguments import between, file_to_write
from .runs import RunError

__all__ = ["CODECS", "Case", "add_arguments", "cases", "limit", "measure", "rows", "verify"]

CODECS: tuple[Compressor, ...] = (
    ErrorFeedback(OneBit()),
    ErrorFeedback(TopK(ratio=0.01)),
    ErrorFeedback(TopK(ratio=0.01, values=FP16())),
    ErrorFeedback(TopK(ratio=0.01, values=Int8())),
    ErrorFeedback(RandomK(ratio=0.01)),
    ErrorFeedback(Int8(block=256)),
    Int8(block=256, stochastic=True),
    FP16(),
    BF16(),
)
SIZES = (1 << 10, 1 << 20, 25 << 20)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
#: elements that all repetitions of a case handle together, about; and the least number of repetitions
WORK, FEWEST = 200 << 20, 7
#: calls that are timed together where one is too short for the clock
BATCH = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `gradwire bench codecs`."""
    parser.add_argument(
        "--numel",
        type=between(1, 1 << 31),
        nargs="+",
        default=list(SIZES),
        metavar="N",
        help="elements of the gradients (default: 1024, 1048576 and 26214400)",
    )
    parser.add_argument("--dtype", choices=list(DTYPES), default="fp32", help="of the gradients (default: fp32)")
    parser.add_argument("--threads", type=between(1, 1024), default=1, metavar="N", help="threads (default: 1)")
    parser.add_argument("--reference", action="store_true", help="the kernels in plain torch, not the native ones")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write the rows as a list of objects")


@dataclass
class Case:
    """One codec at one size, with what its calls need."""

    codec: Compressor
    source: torch.Tensor
    state: State
    ctx: Context
    #: receives the gradient before each call and may be overwritten by it, as where a host gives its gradient away
    grad: torch.Tensor
    payload: torch.Tensor
    out: torch.Tensor

    def encode(self) -> Any:
        scratch = self.grad if self.grad.dtype == torch.float32 else self.out
        return self.codec.compress(self.grad, self.state, self.ctx, out=self.payload, scratch=scratch)

    def decode(self) -> None:
        self.codec.decompress_add(self.payload, self.ctx, self.out, 0.5)

    @property
    def name(self) -> str:
        inner = self.codec.compressor if isinstance(self.codec, ErrorFeedback) else self.codec
        return f"{format_spec(inner)}{' + error feedback' if inner is not self.codec else ''}"


def cases(numel: int, dtype: torch.dtype) -> Iterator[Case]:
    """All codecs on one gradient, with a residual from a step before."""
    generator = torch.Generator().manual_seed(numel)
    source = torch.randn(numel, generator=generator).to(dtype)
    for codec in CODECS:
        ctx = Context(meta=TensorMeta(name="gradient", shape=(numel,), dtype=dtype), step=1)
        first = codec.compress(torch.randn(numel, generator=generator), codec.init(ctx.meta), ctx)
        yield Case(codec, source, first.state, ctx, source.clone(), first.payload, torch.zeros(numel))


def measure(case: Case, operation: str, threads: int) -> dict[str, Any]:
    """The row of one operation: medians of calls that alternate with copies."""
    numel = case.source.numel()
    batch = max(1, BATCH // numel)
    call, prepare = (case.encode, _refill(case)) if operation == "encode" else (case.decode, lambda: None)
    copies, calls = [], []
    for _ in range(max(FEWEST, WORK // (numel * batch) // 4) + 1):
        copies.append(_timed(_memcpy(numel), lambda: None, batch))
        calls.append(_timed(call, prepare, batch))
    copy, time_of_call = (statistics.median(times[1:]) for times in (copies, calls))
    return {
        "codec": case.name,
        "op": operation,
        "numel": numel,
        "dtype": str(case.source.dtype).removeprefix("torch."),
        "threads": threads,
        "kernels": "native" if kernels.native_is_used() else "reference",
        "ratio_to_memcpy": time_of_call / copy,
        "ns_per_call": 1e9 * time_of_call,
        "wire_bytes": case.payload.nbytes,
        "limit_bytes": limit(case),
    }


def limit(case: Case) -> float:
    """The fewest bytes that could say the same: entropy of the places, and the values' bits without any scales."""
    numel = case.source.numel()
    inner = case.codec.compressor if isinstance(case.codec, ErrorFeedback) else case.codec
    k = inner.entries(case.ctx.meta)
    if isinstance(inner, TopK):
        width = 4 if inner.values is None else 1 if isinstance(inner.values, Int8) else 2
        return _entropy(numel, k or 0) + width * (k or 0)
    if k is not None:
        return 4.0 * k
    return numel * {OneBit: 1, Int8: 8}.get(type(inner), 16) / 8


def verify(case: Case) -> None:
    """What was sent and what was left out make up the input.

    Raises:
        RunError: they do not.
    """
    total = case.source.double()
    if RESIDUAL in case.state:
        total = total + case.state[RESIDUAL]
    case.grad.copy_(case.source)
    done = case.encode()
    rest = done.state[RESIDUAL].double() if RESIDUAL in done.state else torch.zeros_like(total)
    decoded = torch.zeros(total.numel())
    case.codec.decompress_add(done.payload, case.ctx, decoded, 1.0)
    gap = float((decoded.double() + rest - total).abs().max())
    # without error feedback, nothing is kept of what a rounding to a level or to 16 bits lost
    allowed = 1e-6 if RESIDUAL in done.state else 1 / 120
    if not gap <= allowed * float(total.abs().max()):
        raise RunError(f"{case.name} on {total.numel()} elements: decoded and left out miss the input by {gap}")
    case.out.zero_()


def rows(options: argparse.Namespace, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure everything that was asked for; `show` hears of each case."""
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    measured = []
    try:
        with kernels.reference_only(options.reference):
            for numel in options.numel:
                for case in cases(numel, DTYPES[options.dtype]):
                    show(f"{case.name}, {numel} elements")
                    verify(case)
                    measured += [measure(case, operation, options.threads) for operation in ("encode", "decode_add")]
    finally:
        torch.set_num_threads(before)
    return measured


def _entropy(numel: int, k: int) -> float:
    """Bytes that say which k of n places: log2 of n over k."""
    return (math.lgamma(numel + 1) - math.lgamma(k + 1) - math.lgamma(numel - k + 1)) / math.log(2) / 8


def _refill(case: Case) -> Callable[[], Any]:
    return lambda: case.grad.copy_(case.source)


def _memcpy(numel: int) -> Callable[[], Any]:
    source, target = _buffers(numel)
    return lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), 4 * numel)


@lru_cache(maxsize=1)
def _buffers(numel: int) -> Sequence[torch.Tensor]:
    """Made once per size: fresh memory would be slower than a gradient's."""
    return torch.ones(2, numel).unbind()


def _timed(call: Callable[[], Any], prepare: Callable[[], Any], batch: int) -> float:
    """Seconds of one call. Calls of a batch follow each other, so what is prepared once serves them all."""
    prepare()
    begun = time.perf_counter()
    for _ in range(batch):
        call()
    return (time.perf_counter() - begun) / batch
