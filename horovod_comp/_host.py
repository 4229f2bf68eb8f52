"""Horovod as it is installed here, and the private names of it that gradwire relies on.

Nothing of Horovod is changed. Its private names are checked once, when this module is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any, Protocol

import torch

from ..backends.hosts import require_names
from ..compressors.errors import MissingDependencyError

try:
    import horovod
    import horovod.torch as hvd
    import horovod.torch.mpi_ops as mpi_ops  # noqa: PLR0402  (the other form is lost on pyright, in an import cycle)
    from horovod.torch.optimizer import _DistributedOptimizer
except ImportError as error:
    raise MissingDependencyError("horovod", "horovod", "gradwire.horovod_comp") from error

__all__ = ["ReducingOptimizer", "SUPPORTED", "hvd", "missing_names", "mpi_ops", "require"]

#: the releases of Horovod that the private names were checked against
SUPPORTED = ("0.28.1",)

#: public functions, and the private ones through which a payload passes
_MPI_OPS = (
    "mpi_lib",
    "_handle_map",
    "_allreduce_async",
    "_allreduce_function_factory",
    "_grouped_allreduce_async",
    "_grouped_allreduce_function_factory",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_async_",
    "is_homogeneous",
    "poll",
    "synchronize",
)
#: functions of `mpi_ops`, then methods of the optimizer: the local variables read in their frames, and the names that
#: their code must use itself
_FUNCTIONS = {
    "_allreduce_async": (("tensor", "output", "process_set"), ("_check_function", "_handle_map")),
    "_grouped_allreduce_async": (("tensors", "outputs", "process_set"), ("_check_function", "_handle_map")),
    "synchronize": ((), ("_handle_map", "horovod_torch_wait_and_clear")),
}
_METHODS = {
    "__init__": ((), ("_compression", "_parameter_names")),
    "_allreduce_grad_async": (("self", "p", "name"), ("allreduce_async_",)),
    "_grouped_allreduce_grad_async": (("self", "ps"), ("grouped_allreduce_async_",)),
    "synchronize": (("self",), ("callable", "_allreduce_grad_async")),
}


class ReducingOptimizer(Protocol):
    """What is read of Horovod's optimizer, whose class is made at run time."""

    param_groups: list[dict[str, Any]]
    process_set: hvd.ProcessSet
    _parameter_names: dict[torch.nn.Parameter, str]
    _requires_update: set[torch.nn.Parameter]
    _handles: dict[Any, Any]
    _synchronized: bool
    _groups: object
    _p_to_group: dict[torch.nn.Parameter, tuple[torch.nn.Parameter, ...]]


def missing_names(module: object, optimizer: type) -> list[str]:
    """The names of Horovod that gradwire needs and that `module` (mpi_ops) or `optimizer` does not have."""
    missing = [f"horovod.torch.mpi_ops.{name}" for name in _MPI_OPS if not hasattr(module, name)]
    for name, needed in _FUNCTIONS.items():
        missing += _missing_in(getattr(module, name, None), f"horovod.torch.mpi_ops.{name}", *needed)
    for name, needed in _METHODS.items():
        place = f"horovod.torch.optimizer._DistributedOptimizer.{name}"
        missing += _missing_in(getattr(optimizer, name, None), place, *needed)
    return missing


def _missing_in(function: object, place: str, variables: Iterable[str], names: Iterable[str]) -> list[str]:
    if not isinstance(function, FunctionType):
        return [place]
    code = function.__code__
    lacking = [name for name in variables if name not in code.co_varnames]
    lacking += [name for name in names if name not in code.co_names]
    return [f"{name} in {place}" for name in lacking]


def require(missing: Iterable[str]) -> None:
    """Refuse a Horovod that lacks some of the names.

    Raises:
        UnsupportedError: something is missing; the text names it, the version found and the versions supported.
    """
    require_names("Horovod", horovod.__version__, SUPPORTED, missing)


require(missing_names(mpi_ops, _DistributedOptimizer))
