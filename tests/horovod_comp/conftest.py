from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import horovod.torch
import pytest


@pytest.fixture(scope="session")
def hvd() -> Iterator[ModuleType]:
    """`horovod.torch` as one process of its own, without a launcher."""
    horovod.torch.init()
    yield horovod.torch
    horovod.torch.shutdown()
