from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import horovod.torch
import pytest


@pytest.fixture(scope="session")
def hvd() -> Iterator[ModuleType]:
    """`horovod.torch` as one process of its own, without a launcher."""
    # MPI without mpirun would look for its files where it was built; Gloo needs none
    os.environ |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    horovod.torch.init()
    yield horovod.torch
    horovod.torch.shutdown()
