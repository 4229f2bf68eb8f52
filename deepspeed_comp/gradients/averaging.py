"""Which functions of DeepSpeed average gradients at a ZeRO stage, and which gradients each of their calls is about.

Read in the sources from 0.15.4 to 0.19.8. A bucket's gradients are found where DeepSpeed itself lists them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...backends import Part
from ...compressors.errors import UnsupportedError
from .._host import missing, require
from .regions import PADDING, Regions, Tensor

__all__ = ["Averaging", "Bucketed", "Carried", "Find", "Partitioned", "Replicated", "averaging_of", "group_of"]

#: name mangling of stage 3
_STAGE3 = "_DeepSpeedZeroOptimizer_Stage3__"


class Carried(NamedTuple):
    """What a flat tensor carries from rank to rank.

    Attributes:
        parts: which parameters' gradients lie where.
        numel: of the flat tensor.
        bounds: rank r gets the run from `bounds[r]` to `bounds[r + 1]`; None: that is for the call to say.
    """

    parts: tuple[Part, ...]
    numel: int
    bounds: tuple[int, ...] | None = None


#: from the first argument of a function that averages
Find = Callable[[Any], Carried]


class Averaging(ABC):
    """The functions of DeepSpeed that average gradients at one ZeRO stage.

    Args:
        engine: DeepSpeed's, with its optimizer.
        world_size: ranks that average.

    Attributes:
        host: the object whose methods they are.
        after: what DeepSpeed multiplies sums over the ranks with, so that they are gradients (still loss-scaled).

    Raises:
        UnsupportedError: this release of DeepSpeed has not all of the names that are relied on.
    """

    def __init__(self, engine: Any, host: Any, world_size: int) -> None:
        self.host = host
        self._engine = engine
        self._world_size = world_size
        require(missing(host, type(host).__name__, [*self.methods, *self._needed()]))
        self._tensors = {
            parameter: Tensor(name, tuple(getattr(parameter, "ds_shape", parameter.shape)))
            for name, parameter in engine.module.named_parameters()
        }

    @property
    @abstractmethod
    def methods(self) -> Mapping[str, Find]:
        """The functions by name; within a call, each sum is about the gradients that its first argument names."""

    @property
    @abstractmethod
    def after(self) -> float: ...

    @abstractmethod
    def _needed(self) -> Sequence[str]:
        """What else the host must have."""

    @abstractmethod
    def _gradients(self) -> Iterator[tuple[torch.Tensor, Tensor]]:
        """The gradients that may be averaged right now."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all parameters, by name; equal on all ranks."""
        return dict(self._tensors.values())

    def _list(self, pieces: Sequence[torch.Tensor]) -> Carried:
        """Gradients that DeepSpeed puts in a row."""
        return Carried(Regions(self._gradients()).parts(pieces), sum(piece.numel() for piece in pieces))

    def _one(self, flat: torch.Tensor) -> Carried:
        """Gradients that lie in a row already."""
        return self._list([flat])

    def _tensor(self, parameter: torch.Tensor) -> Tensor:
        tensor = self._tensors.get(parameter)
        if tensor is None:
            raise UnsupportedError(
                f"DeepSpeed averages the gradient of a parameter of shape {tuple(parameter.shape)} that the model did "
                "not have when compression was attached: detach() before the model is changed, and attach() again"
            )
        return tensor


class Replicated(Averaging):
    """Stage 0, and bf16 with fp32 accumulation at stage 1: the engine averages all gradients itself."""

    def __init__(self, engine: Any, world_size: int) -> None:
        super().__init__(engine, engine, world_size)

    @property
    def methods(self) -> Mapping[str, Find]:
        return {"allreduce_bucket": self._list, "sparse_allreduce_bucket": _refuse_sparse}

    @property
    def after(self) -> float:
        return _postscaled(self._engine, self._world_size)

    def _needed(self) -> Sequence[str]:
        if self._accumulates():
            names = ("bf16_groups", "fp32_groups_gradients", "fp32_groups_gradients_flat")
            require(missing(self._engine.optimizer, type(self._engine.optimizer).__name__, names))
        return ["gradient_average", "postscale_gradients", "gradient_predivide_factor", "sequence_parallel_size"]

    def _accumulates(self) -> bool:
        """Whether gradients are added up in buffers of the optimizer's; DeepSpeed asks in the same way."""
        return hasattr(self._engine.optimizer, "get_grads_for_reduction")

    def _gradients(self) -> Iterator[tuple[torch.Tensor, Tensor]]:
        if self._accumulates():
            yield from self._accumulated(self._engine.optimizer)
            return
        for parameter in self._tensors:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                yield parameter.grad, self._tensors[parameter]

    def _accumulated(self, optimizer: Any) -> Iterator[tuple[torch.Tensor, Tensor]]:
        """Of each parameter group one flat buffer, padded at its end."""
        buffers = optimizer.bf16_groups, optimizer.fp32_groups_gradients, optimizer.fp32_groups_gradients_flat
        for parameters, gradients, flat in zip(*buffers, strict=True):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                yield gradient, self._tensor(parameter)
            yield flat[sum(gradient.numel() for gradient in gradients) :], PADDING


class Bucketed(Averaging):
    """Stages 1 and 2: the optimizer averages buckets of gradients as they fill up.

    With reduce_scatter it cuts a bucket where the owner changes, and averages the cuts: of all owners together, or
    of one owner at a time.
    """

    def __init__(self, engine: Any, world_size: int) -> None:
        super().__init__(engine, engine.optimizer, world_size)

    @property
    def methods(self) -> Mapping[str, Find]:
        return {"average_tensor": self._one, "allreduce_bucket": self._list}

    @property
    def after(self) -> float:
        whole = self.host.contiguous_gradients and not self.host.reduce_scatter
        return _postscaled(self._engine, self._world_size) if whole else 1.0

    def _needed(self) -> Sequence[str]:
        return ["param_dict", "contiguous_gradients", "reduce_scatter", *_bucket_names(self.host, "grads", "params")]

    def _gradients(self) -> Iterator[tuple[torch.Tensor, Tensor]]:
        for gradients, entries in _buckets(self.host):
            for gradient, (*_, number) in zip(gradients, entries, strict=True):
                yield gradient, self._tensor(self.host.param_dict[number])


class Partitioned(Averaging):
    """Stage 3: each rank gets a run of every gradient; or, without reduce_scatter, all of it."""

    def __init__(self, engine: Any, world_size: int) -> None:
        super().__init__(engine, engine.optimizer, world_size)

    @property
    def methods(self) -> Mapping[str, Find]:
        return {
            f"{_STAGE3}avg_scatter_grads": self._scattered,
            f"{_STAGE3}avg_scatter_contiguous_grads": self._one,
        }

    @property
    def after(self) -> float:
        factor = float(self.host.gradient_predivide_factor)
        return factor if self.host.postscale_gradients and factor != self._world_size else 1.0

    def _needed(self) -> Sequence[str]:
        return ["postscale_gradients", "gradient_predivide_factor", *_bucket_names(self.host, "params")]

    def _gradients(self) -> Iterator[tuple[torch.Tensor, Tensor]]:
        for _, parameters in _buckets(self.host):
            for parameter in parameters:
                yield parameter.grad, self._tensor(parameter)

    def _scattered(self, parameters: Sequence[torch.Tensor]) -> Carried:
        """As `deepspeed.runtime.comm.coalesced_collectives.reduce_scatter_coalesced` lays them out.

        Rank by rank, each gets its run of every gradient; all but the last runs of a gradient are of one length, and
        the last ones are padded to it.
        """
        tensors = [self._tensor(parameter) for parameter in parameters]
        parts: list[Part] = []
        start = 0
        for rank in range(self._world_size):
            for tensor in tensors:
                numel = math.prod(tensor.shape)
                run = math.ceil(numel / self._world_size)
                low, high = min(rank * run, numel), min((rank + 1) * run, numel)
                parts += [Part(*tensor, start, high - low, low)] if low < high else []
                start += run
        bounds = tuple(rank * start // self._world_size for rank in range(self._world_size + 1))
        return Carried(tuple(parts), start, bounds)


def group_of(engine: Any) -> Any:
    """The ranks that average gradients: those that see the same parameters with other data, or other parts of it."""
    if engine.pipeline_parallelism:
        return engine.mpu.get_data_parallel_group()
    group_of_parameter = getattr(engine.optimizer, "_get_param_partition_group", None)
    if int(engine.zero_optimization_stage()) == 3 and group_of_parameter is not None:
        return group_of_parameter(next(engine.module.parameters()))  # all ranks, also where ds.json names a mesh
    return engine.seq_data_parallel_group


def averaging_of(engine: Any, world_size: int) -> Averaging:
    """How the engine's gradients are averaged.

    Raises:
        UnsupportedError: as `Averaging`.
    """
    stage = int(engine.zero_optimization_stage())
    if stage == 3:
        return Partitioned(engine, world_size)
    if stage > 0 and hasattr(engine.optimizer, "reduce_gradients"):  # DeepSpeed asks in the same way
        return Bucketed(engine, world_size)
    return Replicated(engine, world_size)


def _postscaled(engine: Any, world_size: int) -> float:
    if not engine.gradient_average or not engine.postscale_gradients():
        return 1.0
    return float(engine.gradient_predivide_factor()) * engine.sequence_parallel_size / world_size


def _bucket_names(optimizer: Any, *fields: str) -> list[str]:
    """Since 0.17 there is one bucket for each dtype of communication; before that, there is one."""
    if not hasattr(optimizer, "ipg_buckets"):
        return [f"{field}_in_ipg_bucket" for field in fields]
    for bucket in optimizer.ipg_buckets.values():
        require(missing(bucket, type(bucket).__name__, fields))
    return ["ipg_buckets"]


def _buckets(optimizer: Any) -> list[tuple[Sequence[torch.Tensor], Sequence[Any]]]:
    """The gradients that wait in each bucket (stages 1 and 2 only), and whose they are."""
    if hasattr(optimizer, "ipg_buckets"):
        return [(getattr(bucket, "grads", ()), bucket.params) for bucket in optimizer.ipg_buckets.values()]
    return [(getattr(optimizer, "grads_in_ipg_bucket", ()), optimizer.params_in_ipg_bucket)]


def _refuse_sparse(bucket: object) -> Carried:
    raise UnsupportedError(
        "DeepSpeed gathers sparse gradients, as of Embedding(sparse=True), by other means than sums, so they cannot be "
        "compressed: use sparse=False, or detach()"
    )
