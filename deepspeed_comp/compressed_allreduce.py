"""DeepSpeed's own 1-bit all-reduce, the one under its 1-bit optimizers: signs and one scale per rank, twice.

A message is the scale (4 bytes) and the signs of a chunk, eight to a byte, the first in the highest bit: of N values
(padding included) over W ranks, a rank sends (W-1)(4 + N/8W) bytes in each phase.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..backends import Transport
from ..compressors import kernels
from ..compressors.errors import UsageError
from ..compressors.options import check_choice

__all__ = ["ErrorSizes", "compressed_allreduce", "error_sizes"]

_SCALE_BYTES = 4
_ORDERS = {"l1": 1, "l2": 2}


class ErrorSizes(NamedTuple):
    """How many elements the two errors have.

    Attributes:
        worker: elements of the worker error; the buffer is padded to this length.
        server: elements of the server error: one rank's chunk of the padded buffer.
    """

    worker: int
    server: int


def error_sizes(numel: int, world_size: int) -> ErrorSizes:
    """What DeepSpeed's optimizers allocate for `numel` values: multiples of `world_size * lcm(world_size, 8)`."""
    multiple = world_size * math.lcm(world_size, 8)
    worker = -(-numel // multiple) * multiple
    return ErrorSizes(worker, worker // world_size)


@torch.no_grad()
def compressed_allreduce(
    buffer: torch.Tensor,
    worker_error: torch.Tensor,
    server_error: torch.Tensor,
    transport: Transport,
    *,
    scale: str = "l2",
    count_padding: bool = False,
    name: str = "gradwire.compressed_allreduce",
    timeout: float = 60.0,
) -> torch.Tensor:
    """Average `buffer` over the ranks with one bit per element and phase, in place, and return it (2102.02888).

    Padded to the length N of `worker_error`, the buffer has one chunk for each of the W ranks. Every rank sends the
    signs of buffer + worker error, and one scale. The owner of a chunk averages what it received, adds its server
    error, and sends signs and one scale again. What is left out stays in the two errors. sign(0) is +1.

    With `count_padding` the numbers are those of DeepSpeed 0.19.6: bit for bit on up to four ranks, up to the order of
    summation on more. One rank alone encodes too.

    All arithmetic is fp32. Where a value of any rank is not finite, or the norm of its values is not, the buffer
    becomes NaN on all ranks and the errors stay as they were.

    Args:
        buffer: any floating dtype, shape and strides; equally many elements on every rank. Results in 16 bits are
            rounded, and saturate, before the server error is taken, which therefore covers that too.
        worker_error: contiguous fp32; N is at least the size of the buffer and a multiple of 8 W.
        server_error: contiguous fp32, N / W elements.
        transport: the ranks.
        scale: "l2" for the root mean square, as in DeepSpeed; "l1" for the mean magnitude, which is a contraction
            on any input.
        count_padding: padding takes part in scales and errors as if it were values, as in DeepSpeed.
        name: prefix of the two collectives' names.
        timeout: seconds that each of them may take.

    Raises:
        ConfigError: an unknown scale.
        UsageError: the buffer is not floating point, or an error does not fit it, as after a change of the world
            size. Nothing was sent.
        TransportError: a collective failed. Buffer and errors are as they were.
    """
    check_choice("scale", scale, tuple(_ORDERS))
    if buffer.numel() == 0:
        worker_error.zero_()
        server_error.zero_()
        return buffer
    _check(buffer, worker_error, server_error, transport.world_size)
    order, chunk = _ORDERS[scale], server_error.numel()
    counted = worker_error.numel() if count_padding else buffer.numel()
    values = _sum(buffer, worker_error.view(-1))
    message = _encode(values, counted, order, transport.world_size, torch.float32)
    received = _all_to_all(message, transport, f"{name}.scatter", timeout)
    means = _mean(received, chunk).add_(server_error.view(-1))
    own = min(max(counted - transport.rank * chunk, 0), chunk)
    answers = _all_gather(_encode(means, own, order, 1, buffer.dtype), transport, f"{name}.gather", timeout)
    if not bool(_scales(answers).isfinite().all()):  # these contain the scales of the first phase
        return buffer.fill_(math.nan)
    worker_error.view(-1).copy_(values)
    server_error.view(-1).copy_(means)
    return _write(answers, chunk, buffer)


def _check(buffer: torch.Tensor, worker_error: torch.Tensor, server_error: torch.Tensor, world_size: int) -> None:
    if not buffer.is_floating_point():
        raise UsageError(f"compressed_allreduce got {buffer.dtype}, expected floating point")
    for name, error in (("worker_error", worker_error), ("server_error", server_error)):
        if error.dtype != torch.float32 or not error.is_contiguous():
            layout = "contiguous" if error.is_contiguous() else "strided"
            raise UsageError(f"{name} is {layout} {error.dtype}, expected contiguous torch.float32")
    worker, server = worker_error.numel(), server_error.numel()
    if worker < buffer.numel() or worker % (8 * world_size) or server * world_size != worker:
        fitting = error_sizes(buffer.numel(), world_size)
        raise UsageError(
            f"worker_error has {worker} elements and server_error {server}; {buffer.numel()} values over {world_size} "
            f"ranks need {fitting.worker} and {fitting.server}: errors of another world size or tensor cannot be "
            "used, start again from zeros"
        )


def _sum(buffer: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Buffer, continued by zeros, plus error; new, flat."""
    values, numel = torch.empty_like(error), buffer.numel()
    torch.add(buffer.reshape(-1), error[:numel], out=values[:numel])
    values[numel:] = error[numel:]
    return values


def _encode(values: torch.Tensor, counted: int, order: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """A message for each of `rows` equal parts; `values` becomes what they leave out, and 0 from `counted` on."""
    scale = _representable(_scale(values[:counted], order), dtype)
    bits = torch.empty(values.numel() // 8, dtype=torch.uint8, device=values.device)
    kernels.sign_pack(values, bits)
    kernels.sign_unpack_add(bits, scale, values.numel(), values, -1.0)
    values[counted:].zero_()
    return torch.cat([scale.view(torch.uint8).expand(rows, -1), bits.view(rows, -1)], dim=1)


def _scale(values: torch.Tensor, order: int) -> torch.Tensor:
    """By torch's own norm, since its order of summation decides the last bit of DeepSpeed's numbers."""
    count = max(values.numel(), 1)
    return (torch.linalg.vector_norm(values, order) / (count if order == 1 else math.sqrt(count))).view(1)


def _representable(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The value of `dtype` that a finite scale becomes in the buffer."""
    if dtype.itemsize >= scale.itemsize or not bool(scale.isfinite()):
        return scale
    return scale.clamp(max=torch.finfo(dtype).max).to(dtype).to(torch.float32)


def _all_to_all(message: torch.Tensor, transport: Transport, name: str, timeout: float) -> torch.Tensor:
    sizes = [message.shape[1]] * transport.world_size
    return transport.all_to_all(message.view(-1), sizes, sizes, name).wait(timeout).view(message.shape)


def _all_gather(message: torch.Tensor, transport: Transport, name: str, timeout: float) -> torch.Tensor:
    sizes = [message.numel()] * transport.world_size
    return transport.all_gather(message.view(-1), sizes, name).wait(timeout).view(transport.world_size, -1)


def _scales(messages: torch.Tensor) -> torch.Tensor:
    return messages[:, :_SCALE_BYTES].flatten().view(torch.float32).view(-1, 1)


def _mean(messages: torch.Tensor, chunk: int) -> torch.Tensor:
    """In rank order, each term scaled before it is added, as DeepSpeed does it."""
    mean = torch.empty(chunk, device=messages.device)
    for rank, (message, scale) in enumerate(zip(messages, _scales(messages), strict=True)):
        kernels.sign_unpack_add(message[_SCALE_BYTES:], scale, chunk, mean, 1 / len(messages), fresh=not rank)
    return mean


def _write(messages: torch.Tensor, chunk: int, buffer: torch.Tensor) -> torch.Tensor:
    """Decode the chunks one after the other into the buffer; the rest of the last one is padding."""
    direct = buffer.dtype == torch.float32 and buffer.is_contiguous()
    flat = buffer.view(-1) if direct else torch.empty(buffer.numel(), device=buffer.device)
    for message, scale, part in zip(messages, _scales(messages), flat.split(chunk), strict=False):
        kernels.sign_unpack_add(message[_SCALE_BYTES:], scale, part.numel(), part, 1.0, fresh=True)
    return buffer if direct else buffer.copy_(flat.view(buffer.shape))
