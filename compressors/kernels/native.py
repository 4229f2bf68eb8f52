"""The kernels in C++, on raw pointers: as `reference` describes them, for contiguous tensors on the CPU.

x is fp32, fp16 or bf16. `csrc/` has the sources, `library` loads what was built of them. Results depend neither on
`threads`, whose default is `torch.get_num_threads()`, nor on the processor. A call takes at most 64 KiB of memory per
thread; `draw`, a bit per element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ..errors import UsageError
from . import reference
from .feed import Feed
from .layout import SCALE_BYTES, blocks_of, indices_of
from .library import ISAS, load

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

_F32 = torch.float32
#: their numbers in the library
_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
#: fewer elements are not worth a second thread
_FEW = 1 << 19
_REFUSED, _NO_MEMORY = -2, -3

_loaded = load()
_library: Any = _loaded.library


def available() -> bool:
    """Whether the library is there; without it no kernel here can be called."""
    return _library is not None


def why_not() -> str:
    """Why it is not, and what to do about it."""
    return _loaded.why_not


def isa() -> str:
    """The form that runs: avx512, avx2 or plain."""
    return ISAS[_library.gw_isa()]


def all_finite(x: torch.Tensor, threads: int | None = None) -> bool:
    n = x.numel()
    return not _library.gw_all_finite(x.data_ptr(), _DTYPES[x.dtype], n, threads or _threads(n))


def copy(x: torch.Tensor, out: torch.Tensor, threads: int | None = None) -> bool:
    n, dtype = x.numel(), x.dtype
    _expect(out, n, dtype)
    return not _library.gw_copy(x.data_ptr(), _DTYPES[dtype], n, out.data_ptr(), threads or _threads(n))


def cast_encode(feed: Feed, divisor: float, out: torch.Tensor, threads: int | None = None) -> int:
    what, n = _pointers(feed)
    _expect(out, n)
    dtype = _DTYPES[out.dtype]
    if not dtype:
        raise UsageError(f"out is {out.dtype}, expected torch.float16 or torch.bfloat16")
    return _library.gw_cast_encode(*what, divisor, dtype, out.data_ptr(), threads or _threads(n))


def cast_decode_add(values: torch.Tensor, out: torch.Tensor, weight: float, threads: int | None = None) -> None:
    n = out.numel()
    _expect(out, n, _F32)
    _expect(values, n)
    args = values.data_ptr(), _DTYPES[values.dtype], n, out.data_ptr(), weight, threads or _threads(n)
    _library.gw_cast_decode_add(*args)


def total(feed: Feed, threads: int | None = None) -> torch.Tensor | None:
    out = torch.empty(feed.x.numel()) if feed.rest is None else feed.rest
    what, n = _pointers(feed._replace(rest=out))
    return None if _library.gw_total(*what, threads or _threads(n)) else out


def sign_encode(feed: Feed, block: int, order: int, payload: torch.Tensor, threads: int | None = None) -> bool:
    what, n = _pointers(feed)
    _expect_bytes(payload, SCALE_BYTES * blocks_of(n, block) + (n + 7) // 8)
    _expect_octets(block, n)
    return not _library.gw_sign_encode(*what, block, order, payload.data_ptr(), threads or _threads(n))


def sign_decode_add(
    payload: torch.Tensor, block: int, out: torch.Tensor, weight: float, threads: int | None = None
) -> None:
    n = out.numel()
    _expect(out, n, _F32)
    _expect_bytes(payload, SCALE_BYTES * blocks_of(n, block) + (n + 7) // 8)
    _expect_octets(block, n)
    if _library.gw_sign_decode_add(payload.data_ptr(), n, block, out.data_ptr(), weight, threads or _threads(n)):
        _refused(reference.sign_decode_add, payload, block, out, weight)


def sign_pack(x: torch.Tensor, bits: torch.Tensor, threads: int | None = None) -> None:
    n = x.numel()
    _expect_bytes(bits, (n + 7) // 8)
    _library.gw_sign_pack(x.data_ptr(), _DTYPES[x.dtype], n, bits.data_ptr(), threads or _threads(n))


def sign_unpack_add(
    bits: torch.Tensor, scales: torch.Tensor, block: int, out: torch.Tensor, weight: float, threads: int | None = None
) -> None:
    n = out.numel()
    _expect(out, n, _F32)
    _expect(scales, blocks_of(n, block), _F32)
    _expect_bytes(bits, (n + 7) // 8)
    _expect_octets(block, n)
    where = bits.data_ptr(), scales.data_ptr()
    _library.gw_sign_unpack_add(*where, n, block, out.data_ptr(), weight, threads or _threads(n))


def int8_encode(feed: Feed, block: int, seed: int | None, payload: torch.Tensor, threads: int | None = None) -> bool:
    what, n = _pointers(feed)
    _expect_bytes(payload, SCALE_BYTES * blocks_of(n, block) + n)
    how = block, seed is not None, seed or 0
    return not _library.gw_int8_encode(*what, *how, payload.data_ptr(), threads or _threads(n))


def int8_decode_add(
    payload: torch.Tensor, block: int, out: torch.Tensor, weight: float, threads: int | None = None
) -> None:
    n = out.numel()
    _expect(out, n, _F32)
    _expect_bytes(payload, SCALE_BYTES * blocks_of(n, block) + n)
    if _library.gw_int8_decode_add(payload.data_ptr(), n, block, out.data_ptr(), weight, threads or _threads(n)):
        _refused(reference.int8_decode_add, payload, block, out, weight)


def top_k_encode(
    feed: Feed, k: int, payload: torch.Tensor, values: torch.Tensor | None, threads: int | None = None
) -> bool:
    what, n = _pointers(feed)
    if not 1 <= k <= n:
        raise UsageError(f"k is {k}, expected 1 to {n}")
    width, _, _, nbytes = indices_of(n, k)
    where = payload.data_ptr()
    if values is None:
        _expect_bytes(payload, nbytes + 4 * k)
        places = where, where + nbytes, False
    else:
        _expect_bytes(payload, nbytes)
        _expect(values, k, _F32)
        places = where, values.data_ptr(), True
    return _done(_library.gw_top_k_encode(*what, k, width // 8, *places, threads or _threads(n)))


def gather_encode(feed: Feed, indices: torch.Tensor, out: torch.Tensor, threads: int | None = None) -> bool:
    what, n = _pointers(feed)
    k = indices.numel()
    _expect(indices, k, torch.int64)
    _expect(out, k, _F32)
    status = _library.gw_gather_encode(*what, indices.data_ptr(), k, out.data_ptr(), threads or _threads(n))
    if status == _REFUSED:
        raise UsageError(f"indices do not ascend strictly within [0, {n})")
    return _done(status)


def put(values: torch.Tensor, payload: torch.Tensor, out: torch.Tensor) -> None:
    n, k = out.numel(), values.numel()
    width, _, _, nbytes = indices_of(n, k)
    _expect(out, n, _F32)
    _expect(values, k, _F32)
    _expect_bytes(payload, nbytes)
    if _library.gw_put(values.data_ptr(), payload.data_ptr(), width // 8, k, out.data_ptr(), n):
        _refused(reference.sparse_indices, payload, n, k)


def sparse_decode_add(
    payload: torch.Tensor, k: int, out: torch.Tensor, weight: float, threads: int | None = None
) -> None:
    n = out.numel()
    width, _, _, nbytes = indices_of(n, k)
    _expect(out, n, _F32)
    _expect_bytes(payload, nbytes + 4 * k)
    where = payload.data_ptr()
    args = where, width // 8, k, where + nbytes, out.data_ptr(), n, weight, threads or _threads(n)
    if _library.gw_sparse_decode_add(*args):
        _refused(reference.sparse_decode_add, payload, k, out, weight)


def sparse_indices(payload: torch.Tensor, numel: int, k: int) -> torch.Tensor:
    width, _, _, nbytes = indices_of(numel, k)
    _expect_bytes(payload, nbytes)
    indices = torch.empty(k, dtype=torch.int64)
    if _library.gw_sparse_indices(payload.data_ptr(), width // 8, numel, k, indices.data_ptr()):
        _refused(reference.sparse_indices, payload, numel, k)
    return indices


def scatter_add(values: torch.Tensor, indices: torch.Tensor, out: torch.Tensor, weight: float) -> None:
    k, n = indices.numel(), out.numel()
    _expect(out, n, _F32)
    _expect(values, k, _F32)
    _expect(indices, k, torch.int64)
    if _library.gw_scatter_add(values.data_ptr(), indices.data_ptr(), k, out.data_ptr(), n, weight):
        raise UsageError(f"an index is outside [0, {n})")


def draw(numel: int, k: int, seed: int) -> torch.Tensor:
    if not 0 <= k <= numel or not 0 <= seed < 1 << 64:
        raise UsageError(f"k is {k}, seed is {seed}; expected 0 to {numel}, and 64 bits")
    places = torch.empty(k, dtype=torch.int64)
    _done(_library.gw_draw(numel, k, seed, places.data_ptr()))
    return places


def _threads(n: int) -> int:
    return torch.get_num_threads() if n >= _FEW else 1


def _pointers(feed: Feed) -> tuple[tuple[int, int, int, int | None, float, int | None], int]:
    """The arguments of an encoder that say what is encoded; and how many elements."""
    x, residual, decay, rest = feed
    n = x.numel()
    if residual is not None:
        _expect(residual, n, _F32)
    if rest is not None:
        _expect(rest, n, _F32)
    what = (
        x.data_ptr(),
        _DTYPES[x.dtype],
        n,
        None if residual is None else residual.data_ptr(),
        decay,
        None if rest is None else rest.data_ptr(),
    )
    return what, n


def _expect(tensor: torch.Tensor, n: int, dtype: torch.dtype | None = None) -> None:
    """Refuse what the library would read or write beyond its end."""
    if tensor.numel() != n or (dtype is not None and tensor.dtype is not dtype):
        raise UsageError(f"a tensor has {tensor.numel()} elements of {tensor.dtype}, expected {n} of {dtype}")


def _expect_bytes(payload: torch.Tensor, n: int) -> None:
    if payload.numel() < n or payload.dtype is not torch.uint8:
        raise UsageError(f"a payload has {payload.numel()} elements of {payload.dtype}, expected {n} of torch.uint8")


def _expect_octets(block: int, n: int) -> None:
    if block % 8 and block < n:
        raise UsageError(f"block is {block}, expected a multiple of 8, or at least all {n} elements")


def _done(status: int) -> bool:
    if status == _NO_MEMORY:
        raise MemoryError("no memory for the scratch space of a kernel")
    return not status


def _refused(reference_function: Callable[..., object], payload: torch.Tensor, *args: object) -> NoReturn:
    """Raise what the reference finds wrong with a payload; it writes nothing, as the library did not."""
    reference_function(payload.clone(), *args)  # at an address that it can take
    raise AssertionError(f"the native form of {reference_function.__name__} refused what the reference accepts")
