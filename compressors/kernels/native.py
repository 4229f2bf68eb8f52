"""The kernels in C++, on raw pointers: as `reference` describes them, for contiguous tensors on the CPU.

x is fp32, fp16 or bf16. `csrc/` has the sources, `library` loads what was built of them. Results depend neither on
`threads`, whose default is `torch.get_num_threads()`, nor on the processor. A call takes at most 64 KiB of memory per
thread; `draw`, a bit per element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch

from ..errors import UsageError
from . import reference
from .feed import Feed
from .layout import SCALE_BYTES, blocks_of
from .library import ISAS, Entry, load
from .records import DTYPES, expect, expect_bytes, fields, int8_bytes, misfit, places, sign_bytes

__all__ = [
    "all_finite",
    "available",
    "cast_decode_add",
    "cast_encode",
    "copy",
    "draw",
    "gather_encode",
    "int8_decode_add",
    "int8_encode",
    "isa",
    "put",
    "scatter_add",
    "sign_decode_add",
    "sign_encode",
    "sign_pack",
    "sign_unpack_add",
    "sparse_decode_add",
    "sparse_indices",
    "top_k_encode",
    "total",
    "why_not",
]

#: fewer elements are not worth a second thread
_FEW = 1 << 19
_REFUSED, _NO_MEMORY = -2, -3

_loaded = load()


def available() -> bool:
    """Whether the library is there; without it no kernel here can be called."""
    return bool(_loaded.entries)


def why_not() -> str:
    """Why it is not, and what to do about it."""
    return _loaded.why_not


def isa() -> str:
    """The form that runs: avx512, avx2 or plain."""
    return ISAS[_entry("isa")()]


def _entry(name: str) -> Entry:
    """An entry point of the library."""

    def absent(*_: object) -> NoReturn:
        raise UsageError(f"the native kernels are {why_not()}")

    return _loaded.entries.get(name, absent)


_all_finite = _entry("all_finite")
_cast_decode_add = _entry("cast_decode_add")
_cast_encode = _entry("cast_encode")
_copy = _entry("copy")
_draw = _entry("draw")
_gather_encode = _entry("gather_encode")
_int8_decode_add = _entry("int8_decode_add")
_int8_encode = _entry("int8_encode")
_put = _entry("put")
_scatter_add = _entry("scatter_add")
_sign_decode_add = _entry("sign_decode_add")
_sign_encode = _entry("sign_encode")
_sign_pack = _entry("sign_pack")
_sign_unpack_add = _entry("sign_unpack_add")
_sparse_decode_add = _entry("sparse_decode_add")
_sparse_indices = _entry("sparse_indices")
_top_k_encode = _entry("top_k_encode")
_total = _entry("total")


def all_finite(x: torch.Tensor, threads: int | None = None) -> bool:
    n = x.numel()
    return not _all_finite(x.data_ptr(), n, DTYPES[x.dtype], threads or _threads(n))


def copy(x: torch.Tensor, out: torch.Tensor, threads: int | None = None) -> bool:
    n, dtype = x.numel(), x.dtype
    expect(out, n, out.dtype)
    if out.dtype is not dtype:  # the mean of 16-bit gradients, encoded for a second phase
        return reference.copy(x, out)
    return not _copy(x.data_ptr(), out.data_ptr(), n, DTYPES[dtype], threads or _threads(n))


def cast_encode(feed: Feed, divisor: float, out: torch.Tensor, threads: int | None = None) -> int:
    what, n = fields(feed)
    dtype = DTYPES[out.dtype]
    if out.numel() != n or not dtype:
        misfit(out, n, torch.float16)
    return _cast_encode(*what, out.data_ptr(), divisor, dtype, threads or _threads(n))


def cast_decode_add(values: torch.Tensor, out: torch.Tensor, weight: float, threads: int | None = None) -> None:
    n, dtype = out.numel(), values.dtype
    expect(out, n)
    expect(values, n, dtype)
    _cast_decode_add(values.data_ptr(), out.data_ptr(), n, weight, threads or _threads(n), DTYPES[dtype])


def total(feed: Feed, threads: int | None = None) -> torch.Tensor | None:
    out = torch.empty(feed.x.numel()) if feed.rest is None else feed.rest
    what, n = fields(feed._replace(rest=out))
    return None if _total(*what, threads or _threads(n)) else out


def sign_encode(feed: Feed, block: int, order: int, payload: torch.Tensor, threads: int | None = None) -> bool:
    what, n = fields(feed)
    expect_bytes(payload, sign_bytes(n, block))
    return not _sign_encode(*what, block, payload.data_ptr(), order, threads or _threads(n))


def sign_decode_add(
    payload: torch.Tensor, block: int, out: torch.Tensor, weight: float, threads: int | None = None
) -> None:
    n = out.numel()
    expect(out, n)
    expect_bytes(payload, sign_bytes(n, block))
    if _sign_decode_add(payload.data_ptr(), block, out.data_ptr(), n, weight, threads or _threads(n)):
        _refused(reference.sign_decode_add, payload, block, out, weight)


def sign_pack(x: torch.Tensor, bits: torch.Tensor, threads: int | None = None) -> None:
    n = x.numel()
    expect_bytes(bits, (n + 7) // 8)
    _sign_pack(x.data_ptr(), bits.data_ptr(), n, DTYPES[x.dtype], threads or _threads(n))


def sign_unpack_add(
    bits: torch.Tensor, scales: torch.Tensor, block: int, out: torch.Tensor, weight: float, threads: int | None = None
) -> None:
    n, blocks = out.numel(), blocks_of(out.numel(), block)
    expect(out, n)
    expect(scales, blocks)
    expect_bytes(bits, sign_bytes(n, block) - SCALE_BYTES * blocks)
    where = bits.data_ptr(), scales.data_ptr()
    _sign_unpack_add(*where, block, out.data_ptr(), n, weight, threads or _threads(n))


def int8_encode(feed: Feed, block: int, seed: int | None, payload: torch.Tensor, threads: int | None = None) -> bool:
    what, n = fields(feed)
    expect_bytes(payload, int8_bytes(n, block))
    at_random = seed is not None
    return not _int8_encode(*what, block, seed or 0, payload.data_ptr(), at_random, threads or _threads(n))


def int8_decode_add(
    payload: torch.Tensor, block: int, out: torch.Tensor, weight: float, threads: int | None = None
) -> None:
    n = out.numel()
    expect(out, n)
    expect_bytes(payload, int8_bytes(n, block))
    if _int8_decode_add(payload.data_ptr(), block, out.data_ptr(), n, weight, threads or _threads(n)):
        _refused(reference.int8_decode_add, payload, block, out, weight)


def top_k_encode(
    feed: Feed, k: int, payload: torch.Tensor, values: torch.Tensor | None, threads: int | None = None
) -> bool:
    what, n = fields(feed)
    width, nbytes = places(n, k)
    where = payload.data_ptr()
    if values is None:
        expect_bytes(payload, nbytes + 4 * k)
        status = _top_k_encode(*what, k, where, where + nbytes, width, False, threads or _threads(n))
    else:
        expect_bytes(payload, nbytes)
        expect(values, k)
        status = _top_k_encode(*what, k, where, values.data_ptr(), width, True, threads or _threads(n))
    return _done(status)


def gather_encode(feed: Feed, indices: torch.Tensor, out: torch.Tensor, threads: int | None = None) -> bool:
    what, n = fields(feed)
    k = indices.numel()
    expect(indices, k, torch.int64)
    expect(out, k)
    status = _gather_encode(*what, indices.data_ptr(), k, out.data_ptr(), threads or _threads(n))
    if status == _REFUSED:
        raise UsageError(f"indices do not ascend strictly within [0, {n})")
    return _done(status)


def put(values: torch.Tensor, payload: torch.Tensor, out: torch.Tensor) -> None:
    n, k = out.numel(), values.numel()
    width, nbytes = places(n, k)
    expect(out, n)
    expect(values, k)
    expect_bytes(payload, nbytes)
    if _put(values.data_ptr(), payload.data_ptr(), k, out.data_ptr(), n, width):
        _refused(reference.sparse_indices, payload, n, k)


def sparse_decode_add(
    payload: torch.Tensor, k: int, out: torch.Tensor, weight: float, threads: int | None = None
) -> None:
    n = out.numel()
    width, nbytes = places(n, k)
    expect(out, n)
    expect_bytes(payload, nbytes + 4 * k)
    where = payload.data_ptr()
    if _sparse_decode_add(where, k, where + nbytes, out.data_ptr(), n, weight, threads or _threads(n), width):
        _refused(reference.sparse_decode_add, payload, k, out, weight)


def sparse_indices(payload: torch.Tensor, numel: int, k: int) -> torch.Tensor:
    width, nbytes = places(numel, k)
    expect_bytes(payload, nbytes)
    indices = torch.empty(k, dtype=torch.int64)
    if _sparse_indices(payload.data_ptr(), numel, k, indices.data_ptr(), width):
        _refused(reference.sparse_indices, payload, numel, k)
    return indices


def scatter_add(values: torch.Tensor, indices: torch.Tensor, out: torch.Tensor, weight: float) -> None:
    k, n = indices.numel(), out.numel()
    expect(out, n)
    expect(values, k)
    expect(indices, k, torch.int64)
    if _scatter_add(values.data_ptr(), indices.data_ptr(), k, out.data_ptr(), n, weight, 1):
        raise UsageError(f"an index is outside [0, {n})")


def draw(numel: int, k: int, seed: int) -> torch.Tensor:
    if not 0 <= k <= numel or not 0 <= seed < 1 << 64:
        raise UsageError(f"k is {k} and the seed {seed}, expected 0 to {numel}, and 64 bits")
    drawn = torch.empty(k, dtype=torch.int64)
    _done(_draw(numel, k, seed, drawn.data_ptr()))
    return drawn


def _threads(n: int) -> int:
    return torch.get_num_threads() if n >= _FEW else 1


def _done(status: int) -> bool:
    if status == _NO_MEMORY:
        raise MemoryError("no memory for the scratch space of a kernel")
    return not status


def _refused(reference_function: Callable[..., object], payload: torch.Tensor, *args: object) -> NoReturn:
    """Raise what the reference finds wrong with a payload; it writes nothing, as the library did not."""
    reference_function(payload.clone(), *args)  # at an address that it can take
    raise AssertionError(f"the native form of {reference_function.__name__} refused what the reference accepts")
