"""For tests that run as one process per rank: every rank runs the same tests in the same order.

Started by `mpirun -np 3 python -m pytest tests/parallel/mpi` and the like. Rank 0 reports; another rank prints
what fails there and nothing else.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest
import torch

#: seconds after which a test ends its process, with the traceback of every thread
HARD_LIMIT = 120.0
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK")


def is_first_rank() -> bool:
    return all(os.environ.get(name, "0") == "0" for name in RANK_VARIABLES)


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    if not is_first_rank():
        config.option.verbose = -2  # no header, no summary of passes


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """No dots for what passes on the other ranks."""
    return ("passed", "", "") if report.passed and not is_first_rank() else None


@pytest.fixture(autouse=True)
def _hard_limit() -> Iterator[None]:
    faulthandler.dump_traceback_later(HARD_LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
