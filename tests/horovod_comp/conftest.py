from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import horovod.torch
import pytest


@pytest.fixture(scope="session")
def hvd() -> Iterator[ModuleType]:
    """`horovod.torch` as one process of its own, without a launcher.

    Over Gloo: MPI would mark the process, and every `mpirun` that is started from it later, as part of an MPI job.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_CONTROLLER", "gloo")
        patch.setenv("HOROVOD_CPU_OPERATIONS", "gloo")
        horovod.torch.init()
    yield horovod.torch
    horovod.torch.shutdown()
