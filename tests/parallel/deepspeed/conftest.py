"""One start of all ranks for all tests here.

`deepspeed.init_distributed` compiles an operator for shared memory when it is first used on a machine, which takes
minutes; only inference needs it, and DeepSpeed leaves it out where it is listed as not compatible. Likewise
`"torch_adam": true` and plain SGD need no compiler. fp16 is refused on a CPU that adds up fp16 numbers well enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch.distributed as dist
from deepspeed.utils import logger
from gradwire.compressors import Compressor
from gradwire.deepspeed_comp import Attachment, attach, detach
from support.deepspeed_standins import allow_fp16, no_shared_memory_op

COMMAND = "torchrun --nproc-per-node 2 -m pytest tests/parallel/deepspeed"

Attach = Callable[..., Attachment]


def pytest_collect_file() -> None:
    if not dist.is_torchelastic_launched():
        raise pytest.UsageError(f"these tests run as one process per rank: {COMMAND}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore:::(torch|deepspeed)"))  # DeepSpeed's way to use torch


@pytest.fixture(scope="session", autouse=True)
def _ranks() -> Iterator[None]:
    """Gloo between all that torchrun started."""
    no_shared_memory_op()
    allow_fp16()
    logger.setLevel(logging.ERROR)
    deepspeed.init_distributed("gloo", verbose=False)
    yield
    dist.destroy_process_group()


@pytest.fixture
def compress() -> Iterator[Attach]:
    """`attach`; all is detached again after the test."""
    engines: list[Any] = []

    def compress(engine: Any, compressor: Compressor, **options: Any) -> Attachment:
        attachment = attach(engine, compressor, **options)
        engines.append(engine)
        return attachment

    yield compress
    for engine in engines:
        detach(engine)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for all ranks."""
    paths = [tmp_path]
    dist.broadcast_object_list(paths)
    return paths[0]
