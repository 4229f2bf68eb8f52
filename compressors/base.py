"""What a compressor is: pure functions with explicit state, and the facts that it declares about itself.

Words used everywhere:

- *meta*: what all ranks know about a tensor without talking (name, shape, dtype).
- *payload*: what one rank sends for one tensor; a contiguous tensor, `nbytes(meta)` bytes long.
- *state*: what a rank keeps for one tensor between steps (a residual, a counter), a dict of tensors.
- *flat*: a contiguous one-dimensional fp32 tensor; all arithmetic happens there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch

from . import kernels
from .errors import PayloadError, UsageError
from .meta import Context, TensorMeta, check_dtype

__all__ = [
    "ALIGNMENT",
    "Compressed",
    "Compressor",
    "Context",
    "Encoded",
    "State",
    "TensorMeta",
    "as_vector",
    "check_flat",
    "settled",
]

State = dict[str, torch.Tensor]
#: the state after a step, and whether the input was finite
Encoded = tuple[State, kernels.Verdict]

#: payloads of bytes start at multiples of this, so that every number inside lies where its type may lie
ALIGNMENT = 8


class Compressed(NamedTuple):
    """What `Compressor.compress` returns.

    Attributes:
        payload: the bytes (uint8) to send; for summable codecs a floating-point tensor.
        state: the state after this step. The state passed in is not changed, so a caller that drops this
            one has undone the step.
        finite: False if the input (with the residual added) held NaN or inf. Then `payload` is poison
            (NaN where it is summable, zero bytes elsewhere) and `state` is the one that was passed in. On a GPU this
            may be a 0-dim tensor that nobody has waited for yet; `state` is the new one then, and where `finite`
            turns out False the caller drops it.
    """

    payload: torch.Tensor
    state: State
    finite: kernels.Verdict


class Compressor(ABC):
    """A pair of functions, `compress` and `decompress`, and what is true of them.

    Subclasses are frozen, keyword-only dataclasses, so that options are checked once, at construction, and
    `repr` gives them back. They write `nbytes`, `_encode` and `_decode_add`; everything about shapes, strides,
    dtypes, empty tensors and non-finite values is settled here, once. A class that overrides one of the
    declared facts below does so with a property or with a plain class attribute of the same name.
    """

    #: how many times as long as the tensor `scratch` may be
    _scratch_rows = 1

    def summable(self, meta: TensorMeta) -> bool:
        """Payloads may be added by a plain all-reduce; they are then floating-point tensors of `wire_dtype`."""
        return False

    @property
    def unbiased(self) -> bool:
        """The expectation of decode(encode(x)) is x."""
        return False

    @property
    def linear(self) -> bool:
        """decode(encode(x)) is linear in x (given the step), so that the error does not depend on the world size."""
        return False

    @property
    def sparse(self) -> bool:
        """Each rank sends entries of its own choice: a second encoding of the sum would lose most of them."""
        return False

    @property
    def wants_memory(self) -> bool:
        """`with_defaults` wraps this codec in `ErrorFeedback`; its option `error_feedback` decides."""
        return bool(getattr(self, "error_feedback", False))

    @property
    def codec_id(self) -> int:
        """One byte that names the payload's layout in a message header (docs/wire-format.md); 0: not ours."""
        return 0

    @property
    def elementwise_state(self) -> frozenset[str]:
        """State entries that hold one value per element of the tensor (flat fp32)."""
        return frozenset()

    @property
    def counters(self) -> frozenset[str]:
        """State entries that count events (0-dim): over the pieces of a tensor they add up."""
        return frozenset()

    def init(self, meta: TensorMeta) -> State:
        """The state before the first step; an entry that is missing counts as zero."""
        return {}

    @abstractmethod
    def nbytes(self, meta: TensorMeta) -> int:
        """Exact payload size in bytes; 0 for an empty tensor. Sizes are never exchanged."""

    def entries(self, meta: TensorMeta) -> int | None:
        """How many elements are sent, for codecs that leave some out; None for the others."""
        return None

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
            x: the gradient: fp16, bf16, fp32 or fp64, any strides, `ctx.meta.numel` elements. Not changed,
                unless it shares its storage with `scratch`.
            state: this tensor's state from the last applied step. Not changed.
            ctx: name, shape, step, rank and seed.
            out: where to write the payload: 1-D, contiguous, `wire_dtype`, `nbytes` long, starting at a
                multiple of 8 bytes in its storage.
            scratch: a flat tensor that may be overwritten and may end up in the returned state. It may be
                `x` itself, when the caller does not need the gradient any more. `MomentumCorrection` takes one of
                twice the length as well, and allocates nothing then.

        Raises:
            UsageError: `x`, `out` or `scratch` does not fit `ctx.meta`.
            UnsupportedError: `x` has another dtype than these.
        """
        meta = ctx.meta
        payload = self._payload(meta, out, x.device)
        vector = as_vector(x, meta)
        if meta.numel == 0:
            return Compressed(payload, state, True)
        memory = None if scratch is None else check_flat(scratch, meta, self._scratch_rows)
        return self._compress(vector, state, ctx, payload, memory)

    def decompress(
        self, payload: torch.Tensor, ctx: Context, out: torch.Tensor | None = None, weight: float = 1.0
    ) -> torch.Tensor:
        """Decode one payload, or the sum of `ctx.meta.summands` payloads, and multiply it with `weight`.

        Args:
            payload: as `compress` made it; 1-D. Not changed.
            ctx: the tensor, and the step and seed under which it was encoded. The rank does not matter.
            out: a flat tensor to overwrite and return; without it a new tensor of `ctx.meta`'s shape and dtype
                (where a decoded value is beyond that dtype's range, it is inf).

        Raises:
            PayloadError: the payload is truncated, oversized or corrupt. Then `out` holds no part of it.
        """
        meta = ctx.meta
        payload = self._check_payload(payload, meta)
        flat = torch.empty(meta.numel, device=payload.device) if out is None else check_flat(out, meta)
        if meta.numel > 0:
            self._decode(payload, ctx, flat, weight)
        return flat.view(meta.shape).to(meta.dtype) if out is None else out

    def decompress_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float = 1.0) -> None:
        """`out += weight * decode(payload)`, without a dense temporary; `out` is flat. Raises as `decompress`."""
        payload = self._check_payload(payload, ctx.meta)
        check_flat(out, ctx.meta)
        if ctx.meta.numel > 0:
            self._decode_add(payload, ctx, out, weight)

    # What a codec writes.

    def _compress(
        self, vector: torch.Tensor, state: State, ctx: Context, payload: torch.Tensor, scratch: torch.Tensor | None
    ) -> Compressed:
        """As `compress`, for a non-empty contiguous `vector` in the gradient's own dtype."""
        after, finite = self._encode(kernels.Feed(vector), state, ctx, payload)
        return settled(payload, state, after, finite)

    @abstractmethod
    def _encode(self, feed: kernels.Feed, state: State, ctx: Context, payload: torch.Tensor) -> Encoded:
        """Write the payload of what is fed, and what it leaves out to `feed.rest`.

        Returns the new state, and whether what is fed is finite; the payload and `feed.rest` may hold anything if it
        is not. A codec without a kernel of its own takes `kernels.total(feed)`, and subtracts what it has written
        from `feed.rest`.
        """

    @abstractmethod
    def _decode_add(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        """`out += weight * decoded`; sizes are checked already, the rest of an untrusted payload is not."""

    def _decode(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor, weight: float) -> None:
        """`out = weight * decoded`: the same as `_decode_add` onto zeros, for which some codecs need one pass only."""
        kernels.zero(out)
        self._decode_add(payload, ctx, out, weight)

    def _clear(self, payload: torch.Tensor, ctx: Context, out: torch.Tensor) -> None:
        """Zero the elements of `out` (flat) that this rank's payload says all about; most codecs say all of none."""
        return

    # Checks shared by all codecs.

    def _payload(self, meta: TensorMeta, out: torch.Tensor | None, device: torch.device) -> torch.Tensor:
        dtype = self.wire_dtype(meta)
        length = self.nbytes(meta) // dtype.itemsize
        if out is None:
            return torch.empty(length, dtype=dtype, device=device)
        if (
            out.numel() != length
            or out.dtype != dtype
            or out.dim() != 1
            or not out.is_contiguous()
            or not _is_aligned(out)
        ):
            raise UsageError(
                f"{meta.name}: out is {out.dtype} {tuple(out.shape)} at byte {_first_byte(out)} of its storage, "
                f"the payload needs contiguous {dtype} ({length},) at a multiple of {ALIGNMENT} bytes"
            )
        return out

    def _check_payload(self, payload: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
        dtype = self.wire_dtype(meta)
        expected = self.nbytes(meta)
        if payload.dtype != dtype or payload.dim() != 1:
            raise PayloadError(f"{meta.name}: payload is {payload.dtype} {tuple(payload.shape)}, expected 1-D {dtype}")
        if payload.nbytes != expected:
            raise PayloadError(f"{meta.name}: payload has {payload.nbytes} bytes, {self!r} expects exactly {expected}")
        return payload if payload.is_contiguous() and _is_aligned(payload) else payload.clone()


def as_vector(x: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """`x` as a contiguous vector in logical order; shares storage where `x` already is contiguous."""
    check_dtype(meta.name, x.dtype)
    if x.numel() != meta.numel:
        raise UsageError(f"{meta.name}: got {x.numel()} elements, expected {meta.numel}")
    if x.is_neg() or x._is_zerotensor():  # negated, or zero, only when read by torch
        x = x.clone().resolve_neg()
    if x.dim() == 1 and not x.requires_grad:
        return x.contiguous()
    return x.detach().reshape(-1).contiguous()


def check_flat(out: torch.Tensor, meta: TensorMeta, rows: int = 1) -> torch.Tensor:
    """`out` itself, if it is what this package calls flat; it may be so many times as long."""
    n = out.numel()
    fits = out.dim() == 1 and (n == meta.numel or n == rows * meta.numel)
    if out.dtype != torch.float32 or not fits or not out.is_contiguous():
        raise UsageError(
            f"{meta.name}: out is {out.dtype} {tuple(out.shape)}, expected contiguous float32 ({meta.numel},)"
        )
    return out


def settled(payload: torch.Tensor, before: State, after: State, finite: kernels.Verdict) -> Compressed:
    """What `compress` returns. If the input was not finite: a payload that no one can take for data."""
    if finite is True:
        return Compressed(payload, after, True)
    poison = float("nan") if payload.is_floating_point() else 0
    if finite is False:
        return Compressed(payload.fill_(poison), before, False)
    return Compressed(payload.masked_fill_(~finite, poison), after, finite)


def _first_byte(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.itemsize


def _is_aligned(tensor: torch.Tensor) -> bool:
    return tensor.storage_offset() % ALIGNMENT == 0 or tensor.dtype != torch.uint8
