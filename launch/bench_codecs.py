"""`gradwire bench codecs`: how long a codec takes, as a ratio to a copy of the same gradient in the same run."""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from ..compressors import ConfigError, kernels
from .arguments import between, file_to_write
from .codec_cases import Case, cases, limit, verify

__all__ = ["add_arguments", "measure", "rows"]

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
    parser.add_argument(
        "--threads", type=between(1, 1024), nargs="+", default=[1], metavar="N", help="threads (default: 1)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the gradients are")
    parser.add_argument("--reference", action="store_true", help="the kernels in plain torch, not the fast ones")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write the rows as a list of objects")


def measure(case: Case, operation: str, threads: int) -> dict[str, Any]:
    """The row of one operation: medians of calls that alternate with copies."""
    numel, device = case.source.numel(), case.source.device
    batch = max(1, BATCH // numel)
    call, prepare = (case.encode, _refill(case)) if operation == "encode" else (case.decode, lambda: None)
    copy, wait = _copy(numel, device), torch.cuda.synchronize if device.type == "cuda" else lambda: None
    copies, calls = [], []
    for _ in range(max(FEWEST, WORK // (numel * batch) // 4) + 1):
        copies.append(_timed(copy, lambda: None, batch, wait))
        calls.append(_timed(call, prepare, batch, wait))
    time_of_copy, time_of_call = (statistics.median(times[1:]) for times in (copies, calls))
    return {
        "codec": case.name,
        "op": operation,
        "numel": numel,
        "dtype": str(case.source.dtype).removeprefix("torch."),
        "device": device.type,
        "threads": threads,
        "kernels": kernels.form_on(device),
        "ratio_to_memcpy": time_of_call / time_of_copy,
        "ns_per_call": 1e9 * time_of_call,
        "wire_bytes": case.payload.nbytes,
        "limit_bytes": limit(case.inner, case.ctx.meta),
    }


def rows(options: argparse.Namespace, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure everything that was asked for; `show` hears of each case.

    Raises:
        ConfigError: there is no such device.
        RunError: a result is wrong.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU here; leave the option out")
    before = torch.get_num_threads()
    measured = []
    try:
        with kernels.reference_only(options.reference):
            for numel in options.numel:
                for case in cases(numel, DTYPES[options.dtype], options.device):
                    show(f"{case.name}, {numel} elements")
                    verify(case)
                    measured += _all_threads(case, options.threads)
    finally:
        torch.set_num_threads(before)
    return measured


def _all_threads(case: Case, threads: Sequence[int]) -> list[dict[str, Any]]:
    measured = []
    for count in threads:
        torch.set_num_threads(count)
        measured += [measure(case, operation, count) for operation in ("encode", "decode_add")]
    return measured


def _refill(case: Case) -> Callable[[], Any]:
    """In one thread of a CPU: torch's threads go on spinning for a while, where those of the kernels want to run."""
    if case.grad.device.type != "cpu":
        return lambda: case.grad.copy_(case.source)
    return lambda: ctypes.memmove(case.grad.data_ptr(), case.source.data_ptr(), case.grad.nbytes)


def _copy(numel: int, device: torch.device) -> Callable[[], Any]:
    """Of so many fp32 elements, in one thread of a CPU."""
    source, target = _buffers(numel, device)
    if device.type != "cpu":
        return lambda: target.copy_(source)
    return lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), 4 * numel)


@lru_cache(maxsize=1)
def _buffers(numel: int, device: torch.device) -> Sequence[torch.Tensor]:
    """Made once per size: fresh memory would be slower than a gradient's."""
    return torch.ones(2, numel, device=device).unbind()


def _timed(call: Callable[[], Any], prepare: Callable[[], Any], batch: int, wait: Callable[[], Any]) -> float:
    """Seconds of one call. Calls of a batch follow each other, so what is prepared once serves them all."""
    prepare()
    wait()
    begun = time.perf_counter()
    for _ in range(batch):
        call()
    wait()
    return (time.perf_counter() - begun) / batch
