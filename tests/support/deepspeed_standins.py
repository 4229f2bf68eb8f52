"""What stands in for hardware that DeepSpeed's old 1-bit code asks for: cupy, a GPU's fp16, a forgiving gather."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

__all__ = ["allow_fp16", "for_cpu", "no_shared_memory_op", "pretend_cupy", "wait_for_every_gather"]


def for_cpu() -> None:
    """All of it; before deepspeed's communication is initialised."""
    pretend_cupy()
    allow_fp16()
    no_shared_memory_op()
    _gather_scalars()


def pretend_cupy() -> None:
    """A `cupy` on numpy, with the functions that DeepSpeed's NcclBackend uses."""
    cupy = ModuleType("cupy")
    functions: dict[str, Any] = {
        "from_dlpack": lambda capsule: from_dlpack(capsule).numpy(),
        "packbits": np.packbits,
        "split": np.split,
        "unpackbits": np.unpackbits,
        "zeros": np.zeros,
    }
    nothing = SimpleNamespace(use=lambda: None, synchronize=lambda: None)
    cuda = SimpleNamespace(Device=lambda number: nothing, get_current_stream=lambda: nothing)
    vars(cupy).update(functions, cuda=cuda)
    sys.modules["cupy"] = cupy


def allow_fp16() -> None:
    """This CPU adds fp16 numbers like any other, only DeepSpeed does not believe it."""
    from deepspeed.accelerator import get_accelerator

    type(get_accelerator()).is_fp16_supported = lambda self: True


def wait_for_every_gather() -> None:
    """Until 0.19.7 stage 3 waits for the last of several gathers only, which over Gloo says nothing of the others."""
    from deepspeed import comm

    own = comm.all_gather_into_tensor

    def all_gather_into_tensor(*args: Any, **options: Any) -> Any:
        handle = own(*args, **options)
        if handle is not None:
            handle.wait()
        return handle

    comm.all_gather_into_tensor = all_gather_into_tensor


def no_shared_memory_op() -> None:
    """DeepSpeed would compile its shared-memory collectives for minutes, and use them for inference only."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _gather_scalars() -> None:
    """The old code gathers 0-dim scales into 1-element slots, which Gloo refuses and NCCL does not mind."""
    from deepspeed import comm

    gather = comm.all_gather

    def all_gather(slots: list[torch.Tensor], tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        return gather(slots, tensor.reshape(-1) if tensor.dim() == 0 else tensor, *args, **options)

    comm.all_gather = all_gather
