"""The seam between Horovod and gradwire: a payload of our own type goes through Horovod's own calls.

Horovod finds the C function for a tensor by name, `horovod_torch_allreduce_async_` + `tensor.type()`. `compress()`
may therefore return a `Payload` whose type is ours; `install()` adds two functions under its name. Nothing of
Horovod is replaced. The two functions hand each request over to the compression object that made the payloads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch

from ..compressors.errors import UnsupportedError, UsageError
from ._handle import SleepingHandle
from ._host import ReducingOptimizer, hvd, mpi_ops

__all__ = ["Operation", "Owner", "Payload", "Request", "install"]

TYPE = "gradwire.Payload"

Operation: TypeAlias = Literal["average", "sum"]


class Owner(Protocol):
    """The compression object: Horovod calls its `compress`, and it launches what Horovod then asks for."""

    # Horovod turns a RuntimeError raised in these into a HorovodInternalError, which an elastic job answers by trying
    # again.

    def _submit(
        self,
        payload: Payload,
        optimizer: ReducingOptimizer,
        parameter: torch.nn.Parameter,
        name: str,
        op: Operation,
        scale: float,
    ) -> None:
        """Take the gradient of one of an optimizer's parameters; see `Request` for the words. This is the hot path."""
        ...

    def _is_reduced(self, optimizer: ReducingOptimizer, parameter: torch.nn.Parameter, name: str) -> bool:
        """Whether the parameter's gradient is a mean already, so that `optimizer.step()` need not reduce it again."""
        ...

    def _launch(self, request: Request) -> SleepingHandle:
        """Start the exchange of a group, or of a function such as `hvd.allreduce`.

        Returns a handle of a real collective: Horovod waits for it and clears it.
        """
        ...


class Payload:
    """One gradient on its way through Horovod, in place of a tensor.

    Any strided tensor will do: any dtype, 0-dim, not contiguous. Result and input are the same object, so Horovod's
    output is this payload again. It is its own handle too, where an optimizer reduces one parameter: such a handle
    stands for no collective of Horovod's, and the optimizer calls a callable handle instead of waiting for it.

    Attributes:
        tensor: the gradient.
        owner: the compression object that made the payload.
        differentiable: autograd would have to go through the reduction.
        take: gives the reduced tensor; set when the payload is launched.

    Raises:
        UnsupportedError: the tensor is sparse.
    """

    __slots__ = ("differentiable", "owner", "take", "tensor")

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

    def __call__(self) -> Payload:
        mpi_ops._handle_map.pop(self, None)
        return self

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


class Request(NamedTuple):
    """What Horovod asks for in a call for a group, or in one of a function.

    Attributes:
        payloads: one per tensor; several only if `grouped`.
        name: the parameter's name, a group's first one, or the user's; None: the user gave none.
        op: how to reduce over the ranks of the process set.
        scale: what the result is multiplied with (prescale times postscale).
        process_set: the ranks that reduce. Horovod does not check here whether this rank is one of them.
        grouped: the call was for a list of tensors.
        optimizer: the DistributedOptimizer that asks; None: a function such as `hvd.allreduce`.
        parameters: the optimizer's parameters that the payloads belong to, in the same order; else none.
    """

    payloads: tuple[Payload, ...]
    name: str | None
    op: Operation
    scale: float
    process_set: hvd.ProcessSet
    grouped: bool
    optimizer: ReducingOptimizer | None
    parameters: tuple[torch.nn.Parameter, ...]


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


_Handle: TypeAlias = Payload | SleepingHandle
_Entry: TypeAlias = Callable[..., _Handle]


def _additions() -> dict[str, _Entry]:
    tag = TYPE.replace(".", "_")
    return {
        f"horovod_torch_allreduce_async_{tag}": _allreduce,
        f"horovod_torch_grouped_allreduce_async_{tag}": _grouped_allreduce,
    }


def _allreduce(payload: Payload, _output: Payload, *arguments: Any) -> _Handle:
    owner = payload.owner
    if payload.differentiable:
        raise UsageError(_NO_AUTOGRAD)
    caller = sys._getframe(1)
    method, variables = _reducing_call(caller, owner)
    if method is None:
        return owner._launch(_request((payload,), arguments, caller, {}, grouped=False))
    divisor, _, op, prescale, postscale = arguments[:_ARGUMENTS]
    optimizer, parameter, name = variables["self"], variables["p"], variables["name"]
    if optimizer._synchronized and _called_from_synchronize(method) and owner._is_reduced(optimizer, parameter, name):
        # step() after synchronize(): the gradient is a mean already, maybe clipped; reducing it again would
        # move the residuals a second time
        payload.take = partial(_unchanged, payload)
    else:
        owner._submit(payload, optimizer, parameter, name, _operation(op, divisor), prescale * postscale)
    return payload


def _grouped_allreduce(payloads: Sequence[Payload], _outputs: Sequence[Payload], *arguments: Any) -> _Handle:
    owner = _owner(payloads)
    caller = sys._getframe(1)
    _, variables = _reducing_call(caller, owner)
    return owner._launch(_request(tuple(payloads), arguments, caller, variables, grouped=True))


#: divisor, name, op, prescale, postscale: of a call of the C function, what follows the tensors; later releases may
#: append more
_ARGUMENTS = 5


def _request(
    payloads: tuple[Payload, ...],
    arguments: Sequence[Any],
    caller: FrameType,
    variables: dict[str, Any],
    *,
    grouped: bool,
) -> Request:
    divisor, name, op, prescale, postscale = arguments[:_ARGUMENTS]
    optimizer = variables.get("self")
    return Request(
        payloads=payloads,
        name=(name.decode() if isinstance(name, bytes) else name) or None,
        op=_operation(op, divisor),
        scale=prescale * postscale,
        # the C function gets a number only; its caller in Horovod has the object
        process_set=caller.f_locals["process_set"] if optimizer is None else optimizer.process_set,
        grouped=grouped,
        optimizer=optimizer,
        parameters=tuple(variables.get("ps", ())),
    )


def _operation(op: int, divisor: int) -> Operation:
    # on ROCm an average arrives as a sum with a divisor
    if op == mpi_ops.Average or (op == mpi_ops.Sum and divisor > 1):
        return "average"
    if op == mpi_ops.Sum:
        return "sum"
    names = {mpi_ops.Adasum: "Adasum", mpi_ops.Min: "Min", mpi_ops.Max: "Max", mpi_ops.Product: "Product"}
    raise UnsupportedError(
        f"op={names.get(op, op)} cannot reduce compressed gradients, which are only added up: "
        "use op=hvd.Average or op=hvd.Sum, or compression=hvd.Compression.none"
    )


def _owner(payloads: Sequence[Payload]) -> Owner:
    owner = payloads[0].owner
    for payload in payloads:
        if getattr(payload, "owner", None) is not owner:
            raise UsageError("one call mixes tensors of several compression objects: use one object per call")
        if payload.differentiable:
            raise UsageError(_NO_AUTOGRAD)
    return owner


_NO_AUTOGRAD = "gradients do not flow through a compressed reduction: detach() the tensor first"


_REDUCING = ("_allreduce_grad_async", "_grouped_allreduce_grad_async")


def _reducing_call(caller: FrameType, owner: Owner) -> tuple[FrameType | None, dict[str, Any]]:
    """The call of the optimizer's method that submits gradients and uses `owner`, and its variables; if there is one.

    The variables are a snapshot that Python makes at every look, so they are looked at once.
    """
    frame: FrameType | None = caller
    while frame is not None:
        if _name(frame) in _REDUCING:
            variables = frame.f_locals
            if getattr(variables.get("self"), "_compression", None) is owner:
                return frame, variables
        frame = frame.f_back
    return None, {}


def _called_from_synchronize(method: FrameType) -> bool:
    return method.f_back is not None and _name(method.f_back) == "synchronize"


def _unchanged(payload: Payload) -> torch.Tensor:
    return payload.tensor


def _name(frame: FrameType) -> str:
    return frame.f_code.co_name
