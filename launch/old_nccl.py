"""DeepSpeed 0.19.6's NcclBackend on a CPU: what stands in for cupy, and for NCCL where Gloo is stricter."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from ..compressors.errors import UnsupportedError

__all__ = ["RELEASE", "make_backend"]

#: the last release with 1-bit code of its own
RELEASE = "0.19.6"


def make_backend() -> Any:
    """The old backend over all ranks of `deepspeed.comm`, which is initialised.

    Raises:
        UnsupportedError: it is another DeepSpeed that imports find.
    """
    import deepspeed

    if deepspeed.__version__ != RELEASE:
        raise UnsupportedError(
            f"imports find DeepSpeed {deepspeed.__version__} in {deepspeed.__path__[0]}, whose NcclBackend is not "
            f"what is compared with here: put a folder with {RELEASE} first on PYTHONPATH"
        )
    sys.modules["cupy"] = cupy()
    from deepspeed.runtime.comm import nccl  # pyright: ignore[reportMissingImports] - of the old release

    gather = nccl.dist.all_gather

    def gather_scalars(slots: list[torch.Tensor], tensor: torch.Tensor, **options: Any) -> Any:
        return gather(slots, tensor.reshape(slots[0].shape), **options)

    nccl.dist = SimpleNamespace(**{**vars(nccl.dist), "all_gather": gather_scalars})
    return nccl.NcclBackend()


def cupy() -> ModuleType:
    """The functions of cupy that the old code uses, by numpy."""
    nothing = SimpleNamespace(use=lambda: None, synchronize=lambda: None)
    module = ModuleType("cupy")
    vars(module).update(
        from_dlpack=lambda capsule: from_dlpack(capsule).numpy(),
        packbits=np.packbits,
        split=np.split,
        unpackbits=np.unpackbits,
        zeros=np.zeros,
        cuda=SimpleNamespace(Device=lambda number: nothing, get_current_stream=lambda: nothing),
    )
    return module
