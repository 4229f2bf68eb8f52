from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from gradwire.backends.mpi import MpiTransport

COMMAND = "mpirun -np 4 python -m pytest tests/parallel/mpi"


def pytest_collect_file() -> None:
    """Asked before a file is imported: a process that mpirun did not start may not even survive `import MPI`."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        raise pytest.UsageError(f"these tests run as one process per rank: {COMMAND}")


@pytest.fixture(scope="session")
def transport() -> Iterator[MpiTransport]:
    """This process's rank of all that mpirun started."""
    transport = MpiTransport()
    yield transport
    transport.close()
