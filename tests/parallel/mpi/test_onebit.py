"""DeepSpeed's 1-bit all-reduce by its old name, over MPI."""

from __future__ import annotations

from contextlib import closing

import pytest
from gradwire.backends.mpi import MpiTransport
from gradwire.deepspeed_comp import MpiBackend
from support.onebit_allreduce import check_face


@pytest.mark.parametrize("numel", [1, 1009, 40000])
def test_all_processes(transport: MpiTransport, numel: int) -> None:
    backend = MpiBackend()
    with closing(backend.transport):
        assert (backend.rank, backend.size) == (transport.rank, transport.world_size)
        check_face(backend, numel)
