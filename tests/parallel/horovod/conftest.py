from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import horovod.torch
import pytest
from gradwire.backends import registry
from gradwire.horovod_comp.transport import HorovodTransport

COMMAND = "horovodrun -np 2 --gloo python -m pytest tests/parallel/horovod"

#: `hvd.init()` takes them all at once: the even and the odd ranks, and a set without the first rank
SETS = {"even": slice(0, None, 2), "odd": slice(1, None, 2), "not first": slice(1, None)}


@pytest.fixture(scope="session")
def process_sets() -> dict[str, horovod.torch.ProcessSet]:
    """Process sets by name; filled by `hvd`. Sets that are empty or have the same ranks as another are left out."""
    return {}


@pytest.fixture(scope="session")
def hvd(process_sets: dict[str, horovod.torch.ProcessSet]) -> Iterator[ModuleType]:
    """`horovod.torch`, initialised once for all tests."""
    if "HOROVOD_SIZE" not in os.environ and "OMPI_COMM_WORLD_SIZE" not in os.environ:
        raise pytest.UsageError(f"these tests run as one process per rank: {COMMAND}")
    size = int(os.environ.get("HOROVOD_SIZE") or os.environ["OMPI_COMM_WORLD_SIZE"])
    chosen: dict[tuple[int, ...], str] = {}
    for name, part in SETS.items():
        ranks = tuple(range(size)[part])
        if ranks and len(ranks) < size:
            chosen.setdefault(ranks, name)
    process_sets.update({name: horovod.torch.ProcessSet(ranks) for ranks, name in chosen.items()})
    registry.WORTH_A_THREAD = 1  # the models of tests are little, and what they are to show is true of large ones
    # a test may have more ranks than cores; Open MPI keeps a core busy for each while it waits, unless told otherwise
    os.environ["OMPI_MCA_mpi_yield_when_idle"] = "1"  # noqa: SIM112 - Open MPI spells it so
    horovod.torch.init(process_sets=list(process_sets.values()))
    yield horovod.torch
    horovod.torch.shutdown()


@pytest.fixture
def transport(hvd: ModuleType) -> HorovodTransport:
    """This process's rank of all that horovodrun started."""
    return HorovodTransport()
