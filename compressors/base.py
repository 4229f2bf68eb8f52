"""What a compressor is: pure functions with explicit state, and the facts that it declares about itself.

Words used everywhere:

- *meta*: what all ranks know about a tensor without talking (name, shape, dtype).
- *payload*: what one rank sends for one tensor; a contiguous tensor, `nbytes(meta)` bytes long.
- *state*: what a rank keeps for one tensor between steps (a residual, a counter), a dict of tensors.
- *flat*: a contiguous one-dimensional fp32 tensor; all arithmetic happens there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from .errors import PayloadError, UsageError

__all__ = ["Compressed", "Compressor", "Context", "State", "TensorMeta", "flatten"]

State = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class TensorMeta:
    """What every rank knows about a tensor; equal on all ranks.

    Attributes:
        name: the parameter's name; states are keyed by it.
        shape: the gradient's shape, `()` for a scalar.
        dtype: the gradient's dtype; decoded tensors come back in it.
        summands: how many payloads the wire adds up before they are decoded (the world size under an
            all-reduce, else 1). Casts to a narrow range divide by it beforehand.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    summands: int = 1

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def raw_bytes(self) -> int:
        """Bytes of the uncompressed gradient."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where and when a tensor is compressed.

    Attributes:
        meta: the tensor.
        step: number of applied steps so far.
        rank: this rank within its group; only per-rank randomness may depend on it.
        seed: the base seed, equal on all ranks.
    """

    meta: TensorMeta
    step: int = 0
    rank: int = 0
    seed: int = 0


class Compressed(NamedTuple):
    """What `Compressor.compress` returns.

    Attributes:
        payload: the bytes (uint8) to send; for summable codecs a floating-point tensor.
        state: the state after this step. The state passed in is not changed, so a caller that drops this
            one has undone the step.
        finite: False if the input (with the residual added) held NaN or inf. Then `payload` is poison
            (NaN where it is summable, zero bytes elsewhere) and `state` is the one that was passed in.
    """

    payload: torch.Tensor
    state: State
    finite: bool


class Compressor(ABC):
    """A pair of functions, `compress` and `decompress`, and what is true of them.

    Subclasses are frozen, keyword-only dataclasses, so that options are checked once, at construction, and
    `repr` gives them back. They write `nbytes`, `_encode` and `_decode`; everything about shapes, strides,
    dtypes, empty tensors and non-finite values is settled here, once.
    """

    #: payloads may be added by a plain all-reduce; they are then tensors of `wire_dtype(meta)`
    summable: ClassVar[bool] = False
    #: `nbytes(meta)` is exact, so that no sizes need to be exchanged
    fixed_size: ClassVar[bool] = True
    #: the expectation of decode(encode(x)) is x
    unbiased: ClassVar[bool] = False
    #: decode(encode(x)) is linear in x (given the step), so that the error does not depend on the world size
    linear: ClassVar[bool] = False
    #: the decoded tensor is zero almost everywhere; a second encoding of a sum would lose entries
    sparse: ClassVar[bool] = False
    #: 1 byte that names the payload's layout in a message header (docs/wire-format.md)
    codec_id: ClassVar[int] = 0
    #: state entries that hold one value per element of the tensor (flat fp32)
    elementwise_state: ClassVar[frozenset[str]] = frozenset()

    def init(self, meta: TensorMeta) -> State:
        """The state before the first step."""
        return {}

    @abstractmethod
    def nbytes(self, meta: TensorMeta) -> int:
        """Exact payload size in bytes; 0 for an empty tensor."""

    def wire_dtype(self, meta: TensorMeta) -> torch.dtype:
        """dtype of the payload tensor: uint8, or for summable codecs what the all-reduce adds up."""
        return torch.uint8

    def compress(
        self,
        x: torch.Tensor,
        state: State,
        ctx: Context,
        *,
        out: torch.Tensor | None = None,
        scratch: torch.Tensor | None = None,
    ) -> Compressed:
        """Encode a gradient.

        Args:
            x: the gradient: any floating dtype, any strides, `ctx.meta.numel` elements. Not changed,
                unless it shares its storage with `scratch`.
            state: this tensor's state from the last applied step. Not changed.
            ctx: name, shape, step, rank and seed.
            out: where to write the payload (1-D, `wire_dtype`, `nbytes` long).
            scratch: a flat tensor that may be overwritten and may end up in the returned state. It may be
                `x` itself, when the caller does not need the gradient any more.

        Raises:
            UsageError: `x`, `out` or `scratch` does not fit `ctx.meta`.
        """
        payload = self._payload(ctx.meta, out, x.device)
        if ctx.meta.numel == 0:
            return Compressed(payload, state, True)
        return self._compress_flat(flatten(x, ctx.meta), state, ctx, payload, scratch)

    def decompress(self, payload: torch.Tensor, meta: TensorMeta, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode one payload.

        Args:
            payload: as `compress` made it; 1-D.
            meta: the tensor.
            out: a flat tensor to overwrite and return; without it a new tensor of `meta`'s shape and dtype.

        Raises:
            PayloadError: the payload is truncated, oversized or corrupt. Nothing was written out of bounds.
        """
        self._check_payload(payload, meta)
        flat = torch.empty(meta.numel, device=payload.device) if out is None else check_flat(out, meta)
        if meta.numel > 0:
            self._decode(payload, meta, flat, 1.0, add=False)
        return flat.view(meta.shape).to(meta.dtype) if out is None else out

    def decompress_add(self, payload: torch.Tensor, meta: TensorMeta, out: torch.Tensor, weight: float = 1.0) -> None:
        """`out += weight * decode(payload)`, without a dense temporary; `out` is flat. Raises as `decompress`."""
        self._check_payload(payload, meta)
        if meta.numel > 0:
            self._decode(payload, meta, check_flat(out, meta), weight, add=True)

    # What a codec writes.

    def _compress_flat(
        self, flat: torch.Tensor, state: State, ctx: Context, payload: torch.Tensor, scratch: torch.Tensor | None
    ) -> Compressed:
        from .kernels import all_finite  # the kernels know nothing of compressors; this avoids a cycle

        if not all_finite(flat):
            poison(payload)
            return Compressed(payload, state, False)
        return Compressed(payload, self._encode(flat, state, ctx, payload), True)

    @abstractmethod
    def _encode(self, flat: torch.Tensor, state: State, ctx: Context, payload: torch.Tensor) -> State:
        """Write the payload of a finite, non-empty `flat` (left unchanged); return the new state."""

    @abstractmethod
    def _decode(self, payload: torch.Tensor, meta: TensorMeta, out: torch.Tensor, weight: float, *, add: bool) -> None:
        """`out = weight * decoded` or, with `add`, `out += weight * decoded`; sizes are checked already."""

    # Checks shared by all codecs.

    def _payload(self, meta: TensorMeta, out: torch.Tensor | None, device: torch.device) -> torch.Tensor:
        dtype = self.wire_dtype(meta)
        length = self.nbytes(meta) // dtype.itemsize
        if out is None:
            return torch.empty(length, dtype=dtype, device=device)
        if out.dtype != dtype or out.shape != (length,) or not out.is_contiguous():
            raise UsageError(
                f"{meta.name}: out is {out.dtype} {tuple(out.shape)}, the payload needs contiguous {dtype} ({length},)"
            )
        return out

    def _check_payload(self, payload: torch.Tensor, meta: TensorMeta) -> None:
        dtype = self.wire_dtype(meta)
        expected = self.nbytes(meta)
        if payload.dtype != dtype or payload.dim() != 1:
            raise PayloadError(f"{meta.name}: payload is {payload.dtype} {tuple(payload.shape)}, expected 1-D {dtype}")
        if payload.nbytes != expected:
            raise PayloadError(f"{meta.name}: payload has {payload.nbytes} bytes, {self!r} expects exactly {expected}")


def flatten(x: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """`x` as a flat fp32 tensor in logical order; shares storage where `x` already is one."""
    if x.numel() != meta.numel or not x.is_floating_point():
        raise UsageError(
            f"{meta.name}: got {x.dtype} with {x.numel()} elements, expected floating point with {meta.numel}"
        )
    return x.detach().reshape(-1).to(torch.float32)


def check_flat(out: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    if out.dtype != torch.float32 or out.shape != (meta.numel,) or not out.is_contiguous():
        raise UsageError(
            f"{meta.name}: out is {out.dtype} {tuple(out.shape)}, expected contiguous float32 ({meta.numel},)"
        )
    return out


def poison(payload: torch.Tensor) -> None:
    """Make a payload that no one can take for data: NaN where sums are formed, zero bytes elsewhere."""
    payload.fill_(float("nan") if payload.is_floating_point() else 0)
