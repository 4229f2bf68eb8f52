"""The DeepSpeed engine that an optimizer works for: how it is found, what is read of it, what is set on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..backends import MpiTransport, TorchTransport, Transport
from ..backends.fingerprint import agree
from ..compressors.errors import ConfigError
from ._host import TIMEOUT, VERSION

__all__ = [
    "Engine",
    "Scope",
    "Scopes",
    "find_engine",
    "loss_scale_fault",
    "parameter_names",
    "refuse_unsuitable",
    "set_backward_allreduce",
    "transport_for",
]

#: key of the scope of all parameters that are no experts
DENSE = "dense"
#: releases whose fp16 wrappers divide gradients by a loss scale that the loss was never multiplied with
LOSS_SCALE_FAULT = ((0, 19, 0), (0, 19, 8))


class Engine(Protocol):
    """What is read of a `DeepSpeedEngine`. Under pipelines it has `pipeline_enable_backward_allreduce` besides."""

    global_rank: int
    module: torch.nn.Module
    mpu: Any
    enable_backward_allreduce: bool
    pipeline_parallelism: bool
    seq_data_parallel_group: Any
    expert_data_parallel_group: Mapping[str, Any]
    sequence_parallel_size: int
    dp_world_size: int

    def zero_optimization_stage(self) -> int: ...

    def fp16_enabled(self) -> bool: ...

    def optimizer_legacy_fusion(self) -> bool: ...


def find_engine() -> Engine | None:
    """The engine among the callers: it builds optimizers, steps them and loads their states."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if any(base.__name__ == "DeepSpeedEngine" for base in type(caller).__mro__):
            return caller
        frame = frame.f_back
    return None


def set_backward_allreduce(engine: Engine, enabled: bool) -> None:
    """Whether the engine averages gradients after backward.

    A pipeline engine has a flag of its own, which it gets after its optimizer: so look for it as late as now.
    """
    pipeline = hasattr(engine, "pipeline_enable_backward_allreduce")
    setattr(engine, "pipeline_enable_backward_allreduce" if pipeline else "enable_backward_allreduce", enabled)


def parameter_names(engine: Engine, groups: Iterable[Mapping[str, Any]]) -> dict[torch.Tensor, str]:
    """Names for all parameters, equal on all ranks: the model's, or for flattened ones their place."""
    named = {parameter: name for name, parameter in engine.module.named_parameters()}
    return {
        parameter: named.get(parameter, f"group{number}.{index}")
        for number, group in enumerate(groups)
        for index, parameter in enumerate(group["params"])
    }


# Who averages what with whom.


@dataclass(frozen=True)
class Scope:
    """Ranks that hold replicas of the same parameters.

    Attributes:
        key: `dense`, or the name of a group of experts.
        transport: these ranks.
        factor: the engine's own average of gradients is the mean over these ranks times this.
    """

    key: str
    transport: Transport
    factor: float = 1.0


class Scopes:
    """The scopes of an engine's parameters, made when they are first asked for.

    Args:
        engine: its groups exist.
        backend: `comm_backend_name`.
        cuda_aware: for MPI.
        facts: gives what all ranks must have been told alike; compared when the first scope is asked for. Nothing
            where a rank without gradients may stay away, as in the old optimizers.
    """

    def __init__(
        self, engine: Engine, backend: str, cuda_aware: bool, facts: Callable[[], Sequence[str]] = tuple
    ) -> None:
        self._facts = facts
        self._agreed = False
        self._engine = engine
        self._backend = backend
        self._cuda_aware = cuda_aware
        self._made: dict[str, Scope] = {}

    @property
    def dense(self) -> Scope:
        """The scope that all others are parts of."""
        return self._get(DENSE)

    def of(self, group: Mapping[str, Any]) -> Scope:
        """The scope of a parameter group; DeepSpeed marks groups of experts by `moe` and names them.

        Raises:
            MismatchError: at the first call, which all ranks make together: they were told different things.
        """
        if not self._agreed:
            self._agreed = True
            if facts := self._facts():
                agree(facts, self.dense.transport, "gradwire.options", TIMEOUT)
        return self._get(str(group["name"]) if group.get("moe") else DENSE)

    def _get(self, key: str) -> Scope:
        if key not in self._made:
            self._made[key] = self._dense() if key == DENSE else self._experts(key)
        return self._made[key]

    def _dense(self) -> Scope:
        engine = self._engine
        pipeline = engine.pipeline_parallelism
        group = engine.mpu.get_data_parallel_group() if pipeline else engine.seq_data_parallel_group
        factor = 1.0 if pipeline else float(engine.sequence_parallel_size)
        return Scope(DENSE, transport_for(group, self._backend, self._cuda_aware), factor)

    def _experts(self, name: str) -> Scope:
        transport = transport_for(self._engine.expert_data_parallel_group[name], self._backend, self._cuda_aware)
        return Scope(name, transport, transport.world_size / self._engine.dp_world_size)


def transport_for(group: Any, backend: str, cuda_aware: bool = False) -> Transport:
    """The transport over a process group that `comm_backend_name` asks for.

    Args:
        group: of torch.distributed; its own backend moves the data.
        backend: "mpi" takes MPI instead, which must have been started with the same ranks.
        cuda_aware: MPI takes device pointers.

    Raises:
        ConfigError: MPI has other ranks than the group.
    """
    if backend != "mpi":
        return TorchTransport(group)
    transport = MpiTransport(cuda_aware=cuda_aware)
    expected = dist.get_rank(group), dist.get_world_size(group)
    if (transport.rank, transport.world_size) != expected:
        raise ConfigError(
            f"comm_backend_name is 'mpi', and this is rank {transport.rank} of {transport.world_size} of MPI but rank "
            f"{expected[0]} of {expected[1]} of the group that averages: start the job with "
            "mpirun, or on several machines with deepspeed --launcher openmpi, or use 'gloo' or 'nccl'"
        )
    return transport


# What does not go together.


def refuse_unsuitable(engine: Engine, optimizer: str) -> None:
    """Refuse what does not go together with an optimizer that averages momenta.

    Raises:
        ConfigError: with what works instead.
    """
    stage = engine.zero_optimization_stage()
    if stage > 0:
        raise ConfigError(
            f"{optimizer} averages momenta over the ranks, and zero_optimization.stage is {stage}, which gives every "
            f'rank other parameters to update: use stage 0 with {optimizer}, or "Adam" with a "gradient_compression" '
            f'block such as {{"type": "onebit"}} at stage {stage}'
        )
    # what older releases do not have, they do not do
    if getattr(engine, "torch_autocast_z0_gradscaler", None) is not None:
        raise ConfigError(
            f"torch_autocast with float16 skips a step on the ranks that overflow and not on the others, which would "
            f"wait for them in {optimizer}: use dtype bfloat16"
        )
    if not getattr(engine, "gradient_average", True):
        raise ConfigError(
            f'gradient_allreduce_op is "sum", and {optimizer} takes means of momenta once its variance is frozen: use '
            '"mean", and a learning rate that is as many times larger as there are ranks'
        )
    if engine.optimizer_legacy_fusion():
        raise ConfigError(
            f"optimizer.legacy_fusion is true, which hands gradients over in a way that {optimizer} never took: "
            "leave the key out"
        )


def loss_scale_fault(engine: Engine) -> str | None:
    """What to tell somebody who trains in fp16 at ZeRO stage 0 on a release that gets the loss scale wrong."""
    first, last = LOSS_SCALE_FAULT
    if not (first <= VERSION <= last and engine.fp16_enabled() and engine.zero_optimization_stage() == 0):
        return None
    return (
        f"DeepSpeed {'.'.join(map(str, VERSION))} with fp16 at ZeRO stage 0 divides gradients by a loss scale that it "
        "never multiplied the loss with (0.19.0 to 0.19.8, deepspeedai/DeepSpeed#8393): gradients are too small by "
        "that factor, which eps and gradient_clipping feel. Use bf16, or multiply the loss by "
        "engine.optimizer.loss_scale before engine.backward(loss)"
    )
