"""The exchange for payloads that can be added: one flat tensor per bucket, summed by the host's own all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ..compressors import NoCompression, State, TensorMeta, kernels
from .bucket import Bucket
from .delivery import deliver, is_exclusive
from .exchange import Clock, Exchange, Flight, Source
from .transport import Transport

__all__ = ["AllReduce"]


class AllReduce(Exchange):
    """Sends 2c(W-1)/W bytes per rank (counted as a ring, whatever the host's algorithm); one round.

    There is no header: a non-finite input poisons its payload, and the sum shows it to all ranks alike. So does a
    codec that raises: its own rank gets the error, the others a refused step.
    """

    def __init__(self, bucket: Bucket, transport: Transport, digest: bytes, *, guarded: bool) -> None:
        super().__init__(bucket, transport, digest, guarded=guarded)
        self._metas = [replace(slot.meta, summands=transport.world_size) for slot in bucket.slots]
        itemsize = bucket.lane.dtype.itemsize
        lengths = [slot.codec.nbytes(meta) // itemsize for slot, meta in zip(bucket.slots, self._metas, strict=True)]
        self._bounds = [0, *accumulate(lengths)]
        self._identity = all(isinstance(slot.codec, NoCompression) for slot in bucket.slots)

    @property
    def sent_bytes(self) -> int:
        nbytes = self._bounds[-1] * self.bucket.lane.dtype.itemsize
        return 2 * nbytes * (self.transport.world_size - 1) // self.transport.world_size

    def start(self, sources: Sequence[Source], clock: Clock) -> Flight:
        flight = Flight(clock, sources)
        flat = self._flatten(sources) if self._identity else self._encode_all(flight, sources)
        if self._identity:
            flight.states = [source.state for source in sources]
        flight.work = self.transport.all_reduce(flat, self.bucket.name)
        if self._identity:
            # the sum will be in the same place; cutting it up now costs nothing, as others have to come first
            flight.means = _unflatten_dense_tensors(flat, [source.grad for source in sources])
        return flight

    def finish(self, flight: Flight, timeout: float) -> None:
        flight.result = flight.wait(timeout)
        if self.guarded and flight.result.numel() > 0:
            flight.finite = kernels.all_finite(flight.result)
        if flight.error is not None:
            flight.failed.add(self.transport.rank)

    def mean(self, flight: Flight, slot: int, out: torch.Tensor, scale: float) -> None:
        ctx = flight.clock.context(self._metas[slot])
        weight = scale / self.transport.world_size
        self.bucket.slots[slot].codec.decompress(self._part(flight, slot), ctx, out, weight)

    def view(self, flight: Flight, slot: int, scale: float) -> torch.Tensor | None:
        if not self._identity:
            return None
        if scale == 0.0:  # what others ask for must not become zero
            return torch.zeros_like(flight.sources[slot].grad)
        if flight.scale is None:
            # one pass over the bucket; who asks for different scales pays for the difference
            flight.scale = scale
            flight.result.mul_(scale / self.transport.world_size)
        mean, grad = flight.means[slot], flight.sources[slot].grad
        if not grad.is_contiguous():
            mean = deliver(mean.reshape(-1), grad)
        return mean if scale == flight.scale else mean.mul_(scale / flight.scale)

    def _part(self, flight: Flight, slot: int) -> torch.Tensor:
        return flight.result[self._bounds[slot] : self._bounds[slot + 1]]

    def _flatten(self, sources: Sequence[Source]) -> torch.Tensor:
        """The bucket's gradients in a row; a donated gradient that fills a bucket alone is used as it is."""
        grad = sources[0].grad
        if len(sources) == 1:
            own = sources[0].donated and grad.is_contiguous() and is_exclusive(grad)
            return grad.view(-1) if own else grad.reshape(-1).clone()
        return _flatten_dense_tensors([source.grad for source in sources])

    def _encode_all(self, flight: Flight, sources: Sequence[Source]) -> torch.Tensor:
        flat = torch.empty(self._bounds[-1], dtype=self.bucket.lane.dtype, device=sources[0].grad.device)
        for slot, (source, meta) in enumerate(zip(sources, self._metas, strict=True)):
            part = flat[self._bounds[slot] : self._bounds[slot + 1]]
            flight.states.append(self._encode_one(flight, source, slot, meta, part))
        return flat

    def _encode_one(self, flight: Flight, source: Source, slot: int, meta: TensorMeta, part: torch.Tensor) -> State:
        try:
            ctx = flight.clock.context(meta)
            done = self.bucket.slots[slot].codec.compress(
                source.grad, source.state, ctx, out=part, scratch=source.scratch
            )
        except Exception as error:
            flight.error = error
            part.fill_(float("nan"))
            return source.state
        return done.state
