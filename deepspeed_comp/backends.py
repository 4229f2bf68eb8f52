"""The classes under which DeepSpeed's 1-bit optimizers used to communicate, over gradwire's transports."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..backends import MpiTransport, TorchTransport, Transport
from ._host import TIMEOUT
from .compressed_allreduce import compressed_allreduce

__all__ = ["CompressedBackend", "MpiBackend", "NcclBackend", "ParallelUnit"]


class ParallelUnit(Protocol):
    """What is asked of DeepSpeed's `mpu`."""

    def get_data_parallel_group(self) -> Any: ...


class _Backend:
    """`compressed_allreduce` with the numbers of DeepSpeed 0.19.6: padding counts, the scale is the root mean square.

    Attributes:
        rank: this process within the group.
        size: number of ranks in the group.
        transport: what carries the messages.
        timeout: seconds that a collective may take.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        self.transport = transport
        self.rank = transport.rank
        self.size = transport.world_size
        self.timeout = timeout

    def compressed_allreduce(
        self,
        buffer_m: torch.Tensor,
        worker_error: torch.Tensor,
        server_error: torch.Tensor,
        local_rank: int | None = None,
    ) -> torch.Tensor:
        """Average `buffer_m` over the ranks, in place, and return it; see the function of this name.

        `local_rank` chose a device once; the tensors know theirs.
        """
        return compressed_allreduce(
            buffer_m, worker_error, server_error, self.transport, count_padding=True, timeout=self.timeout
        )


class CompressedBackend(_Backend):
    """Over torch.distributed, whatever its backend: Gloo for CPU tensors, NCCL for CUDA tensors.

    Args:
        mpu: gives the data-parallel group; without it all processes take part.
        timeout: seconds that a collective may take; torch's own default.
    """

    def __init__(self, mpu: ParallelUnit | None = None, *, timeout: float = TIMEOUT) -> None:
        self.mpu = mpu
        self.world_group = dist.group.WORLD if mpu is None else mpu.get_data_parallel_group()
        super().__init__(TorchTransport(self.world_group), timeout)


class NcclBackend(CompressedBackend):
    """The same by its older name; it does not need NCCL."""


class MpiBackend(_Backend):
    """Over MPI, between all processes of the job.

    Args:
        cuda_aware: this MPI takes device pointers.
        timeout: seconds that a collective may take.
    """

    def __init__(self, cuda_aware: bool = False, *, timeout: float = TIMEOUT) -> None:
        self.cuda_aware = cuda_aware
        super().__init__(MpiTransport(cuda_aware=cuda_aware), timeout)
