"""The seam between Horovod and gradwire: a payload of our own type goes through Horovod's own calls.

Horovod finds the C function for a tensor by name, `horovod_torch_allreduce_async_` + `tensor.type()`. `compress()`
may therefore return a `Payload` whose type is ours; `install()` adds two functions under its name. Nothing of
Horovod is replaced. The two functions hand each request over to the compression object that made the payloads.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from types import FrameType
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import torch

from ..backends.transport import sleep_until
from ..compressors.errors import UnsupportedError, UsageError
from ._host import ReducingOptimizer, hvd, mpi_ops

__all__ = ["Owner", "Payload", "Request", "SleepingHandle", "Ticket", "install"]

TYPE = "gradwire.Payload"


class Owner(Protocol):
    """The compression object: Horovod calls its `compress`, and it launches what Horovod then asks for."""

    def _launch(self, request: Request) -> Ticket | SleepingHandle:
        """Start the exchange; returns the handle for Horovod.

        A `Ticket` does where the optimizer reduces one parameter. A group or a function such as `hvd.allreduce` needs
        a handle of a real collective: Horovod waits for it and clears it. Horovod turns a RuntimeError raised here
        into a HorovodInternalError, which an elastic job answers by trying again.
        """
        ...


class Payload:
    """One gradient on its way through Horovod, in place of a tensor.

    Any strided tensor will do: any dtype, 0-dim, not contiguous. Result and input are the same object, so Horovod's
    output is this payload again.

    Attributes:
        tensor: the gradient.
        owner: the compression object that made the payload.
        differentiable: autograd would have to go through the reduction.
        take: gives the reduced tensor; set when the payload is launched.

    Raises:
        UnsupportedError: the tensor is sparse.
    """

    def __init__(self, owner: Owner, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided:
            raise UnsupportedError(
                f"a gradient of layout {tensor.layout} came in a group, and Horovod groups dense gradients only: "
                "use Embedding(sparse=False), or DistributedOptimizer without groups="
            )
        self.owner = owner
        self.tensor = tensor
        self.take: Callable[[], torch.Tensor] | None = None
        self.differentiable = tensor.requires_grad and torch.is_grad_enabled()

    # What Horovod asks of a tensor.

    def type(self) -> str:
        return TYPE

    def is_contiguous(self) -> bool:
        return True

    def new(self, *_: object) -> Payload:
        return self

    @property
    def data(self) -> Payload:
        return self

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor.device


@dataclass(frozen=True, kw_only=True)
class Request:
    """What Horovod asks for in one call.

    Attributes:
        payloads: one per tensor; several only if `grouped`.
        name: the parameter's name, a group's first one, or the user's; None: the user gave none.
        op: how to reduce over the ranks of the process set.
        scale: what the result is multiplied with (prescale times postscale).
        process_set: the ranks that reduce. Horovod does not check here whether this rank is one of them.
        grouped: the call was for a list of tensors.
        optimizer: the DistributedOptimizer that asks; None: a function such as `hvd.allreduce`.
        parameters: the optimizer's parameters that the payloads belong to, in the same order; else none.
        from_synchronize: `optimizer.synchronize()` submits what no hook did.
    """

    payloads: tuple[Payload, ...]
    name: str | None
    op: Literal["average", "sum"]
    scale: float
    process_set: hvd.ProcessSet
    grouped: bool
    optimizer: ReducingOptimizer | None
    parameters: tuple[torch.nn.Parameter, ...]
    from_synchronize: bool


class Ticket(int):
    """A handle for one parameter's payload that stands for no collective of Horovod's: called, it is the payload.

    The optimizer calls a callable handle instead of waiting for it. Values are negative and unique; Horovod's own
    handles are positive.
    """

    _values: ClassVar[Iterator[int]] = count(-1, -1)

    payload: Payload

    @classmethod
    def of(cls, payload: Payload) -> Ticket:
        """A new ticket for the payload."""
        ticket = cls(next(cls._values))
        ticket.payload = payload
        return ticket

    def __call__(self) -> Payload:
        mpi_ops._handle_map.pop(self, None)
        return self.payload


class SleepingHandle:
    """The handle of a real collective, for Horovod to wait for and to clear.

    Horovod's own wait keeps a core busy. It asks for the handle's number when it begins to wait, and is made to sleep
    there until there is nothing left to wait for.

    Args:
        handle: Horovod's number.
        done: whether the collective has ended.
    """

    def __init__(self, handle: int, done: Callable[[], bool]) -> None:
        self._handle = handle
        self._done = done

    def __index__(self) -> int:
        sleep_until(self._done, math.inf)
        return self._handle

    # Horovod finds its own entry by the handle, in a map with numbers as keys.

    def __hash__(self) -> int:
        return hash(self._handle)

    def __eq__(self, other: object) -> bool:
        return self._handle == other


def install() -> None:
    """Add the two functions to Horovod's extension module; again: no change.

    Raises:
        UnsupportedError: another package has put something under the same name.
    """
    for name, function in _additions().items():
        present = getattr(mpi_ops.mpi_lib, name, None)
        if present is not None and getattr(present, "__module__", None) != __name__:
            raise UnsupportedError(f"horovod.torch.mpi_ops.mpi_lib.{name} exists and is not gradwire's: {present!r}")
        setattr(mpi_ops.mpi_lib, name, function)


_Handle: TypeAlias = Ticket | SleepingHandle
_Entry: TypeAlias = Callable[..., _Handle]


def _additions() -> dict[str, _Entry]:
    tag = TYPE.replace(".", "_")
    return {
        f"horovod_torch_allreduce_async_{tag}": _allreduce,
        f"horovod_torch_grouped_allreduce_async_{tag}": _grouped_allreduce,
    }


class _Arguments(NamedTuple):
    """What follows the tensors in a call of the C function; later releases may append more."""

    divisor: int
    name: bytes | str
    op: int
    prescale: float
    postscale: float


def _allreduce(tensor: Payload, _output: Payload, *rest: object) -> _Handle:
    return _launch((tensor,), _Arguments._make(rest[: len(_Arguments._fields)]), grouped=False)


def _grouped_allreduce(tensors: Sequence[Payload], _outputs: Sequence[Payload], *rest: object) -> _Handle:
    return _launch(tuple(tensors), _Arguments._make(rest[: len(_Arguments._fields)]), grouped=True)


def _launch(payloads: tuple[Payload, ...], call: _Arguments, *, grouped: bool) -> _Handle:
    return _owner(payloads)._launch(_request(payloads, call, sys._getframe(2), grouped=grouped))


def _request(payloads: tuple[Payload, ...], call: _Arguments, caller: FrameType, *, grouped: bool) -> Request:
    op = _operation(call)
    if any(payload.differentiable for payload in payloads):
        raise UsageError("gradients do not flow through a compressed reduction: detach() the tensor first")
    frame = _reducing_frame(caller, _owner(payloads))
    return Request(
        payloads=payloads,
        name=(call.name.decode() if isinstance(call.name, bytes) else call.name) or None,
        op=op,
        scale=call.prescale * call.postscale,
        process_set=caller.f_locals["process_set"],
        grouped=grouped,
        optimizer=frame.f_locals["self"] if frame else None,
        parameters=_parameters(frame) if frame else (),
        from_synchronize=frame is not None and _is(frame.f_back, "synchronize"),
    )


def _operation(call: _Arguments) -> Literal["average", "sum"]:
    # on ROCm an average arrives as a sum with a divisor
    if call.op == mpi_ops.Average or (call.op == mpi_ops.Sum and call.divisor > 1):
        return "average"
    if call.op == mpi_ops.Sum:
        return "sum"
    names = {mpi_ops.Adasum: "Adasum", mpi_ops.Min: "Min", mpi_ops.Max: "Max", mpi_ops.Product: "Product"}
    raise UnsupportedError(
        f"op={names.get(call.op, call.op)} cannot reduce compressed gradients, which are only added up: "
        "use op=hvd.Average or op=hvd.Sum, or compression=hvd.Compression.none"
    )


def _owner(payloads: Sequence[Payload]) -> Owner:
    owner = payloads[0].owner
    if any(getattr(payload, "owner", None) is not owner for payload in payloads):
        raise UsageError("one call mixes tensors of several compression objects: use one object per call")
    return owner


def _reducing_frame(caller: FrameType, owner: Owner) -> FrameType | None:
    """The call of the optimizer's method that submits gradients and uses `owner`, if there is one."""
    frame: FrameType | None = caller
    while frame is not None:
        if _is(frame, "_allreduce_grad_async", "_grouped_allreduce_grad_async"):
            optimizer = frame.f_locals.get("self")
            if getattr(optimizer, "_compression", None) is owner:
                return frame
        frame = frame.f_back
    return None


def _is(frame: FrameType | None, *names: str) -> bool:
    return frame is not None and frame.f_code.co_name in names


def _parameters(frame: FrameType) -> tuple[torch.nn.Parameter, ...]:
    variables = frame.f_locals
    return tuple(variables["ps"]) if "ps" in variables else (variables["p"],)
