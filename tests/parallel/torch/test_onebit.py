"""DeepSpeed's 1-bit all-reduce by its old names, over Gloo."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from gradwire.backends.torch_dist import TorchTransport
from gradwire.deepspeed_comp import CompressedBackend, NcclBackend
from support.onebit_allreduce import check_face


@pytest.mark.parametrize("face", [CompressedBackend, NcclBackend])
@pytest.mark.parametrize("numel", [1, 1009, 40000])
def test_all_processes(transport: TorchTransport, face: type[CompressedBackend], numel: int) -> None:
    backend = face()
    assert (backend.rank, backend.size) == (transport.rank, transport.world_size)
    check_face(backend, numel)


class Reversed:
    """An `mpu` whose data-parallel group has the ranks in reverse."""

    def get_data_parallel_group(self) -> dist.ProcessGroup | int | None:
        return dist.new_group(list(reversed(range(dist.get_world_size()))), sort_ranks=False)


def test_the_group_of_an_mpu(transport: TorchTransport) -> None:
    backend = CompressedBackend(Reversed())
    assert backend.rank == transport.world_size - 1 - transport.rank
    check_face(backend, 100)
