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
from gradwire.deepspeed_comp import Attachment, attach, detach, register
from gradwire.deepspeed_comp._host import VERSION
from support.deepspeed_standins import allow_fp16, no_shared_memory_op, wait_for_every_gather

COMMAND = "torchrun --nproc-per-node 2 -m pytest tests/parallel/deepspeed"

Attach = Callable[..., Attachment]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deepspeed", metavar="RELEASE", help="what has to be installed, or first on PYTHONPATH")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "right_since(release, reason): fails on older releases without gradwire too")
    expected = config.getoption("--deepspeed")
    if expected not in (None, deepspeed.__version__):
        raise pytest.UsageError(f"--deepspeed is {expected}, and {deepspeed.__version__} was imported")


def pytest_collect_file() -> None:
    if not dist.is_torchelastic_launched():
        raise pytest.UsageError(f"these tests run as one process per rank: {COMMAND}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`right_since(release, reason)` marks what older releases of DeepSpeed get wrong without gradwire too."""
    for item in items:
        mark = item.get_closest_marker("right_since")
        if mark is not None and tuple(map(int, mark.args[0].split("."))) > VERSION:
            item.add_marker(pytest.mark.skip(reason=f"DeepSpeed before {mark.args[0]}: {mark.args[1]}"))
        item.add_marker(pytest.mark.filterwarnings("ignore:::(torch|deepspeed)"))  # DeepSpeed's way to use torch


@pytest.fixture(scope="session", autouse=True)
def _ranks() -> Iterator[None]:
    """Gloo between all that torchrun started."""
    no_shared_memory_op()
    allow_fp16()
    if VERSION < (0, 19, 8):
        wait_for_every_gather()
    register(replace=True)  # releases up to 0.19.6 have optimizers of their own
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
