from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from gradwire.backends.torch_dist import TorchTransport

COMMAND = "torchrun --nproc-per-node 2 -m pytest tests/parallel/torch"


def pytest_collect_file() -> None:
    if not dist.is_torchelastic_launched():
        raise pytest.UsageError(f"these tests run as one process per rank: {COMMAND}")


@pytest.fixture(scope="session")
def transport() -> Iterator[TorchTransport]:
    """This process's rank of all that torchrun started, over Gloo."""
    dist.init_process_group("gloo")
    yield TorchTransport()
    dist.destroy_process_group()
