"""The old faces of the 1-bit all-reduce, over threads. Real Gloo and MPI: tests/parallel/{torch,mpi}/test_onebit.py."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from gradwire import UsageError
from gradwire.backends import LocalTransport, run_ranks
from gradwire.deepspeed_comp import CompressedBackend, MpiBackend, NcclBackend, backends, compressed_allreduce
from gradwire.deepspeed_comp.compressed_allreduce import error_sizes
from support.compressing import as_bytes


class Unit:
    """An `mpu` whose data-parallel group is a transport."""

    def __init__(self, transport: LocalTransport) -> None:
        self.transport = transport

    def get_data_parallel_group(self) -> LocalTransport:
        return self.transport


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "TorchTransport", lambda group: group)


@pytest.mark.parametrize("face", [CompressedBackend, NcclBackend])
@pytest.mark.parametrize("shape", [(10,), (3, 5)])
def test_a_call_is_in_place_and_has_deepspeeds_numbers(face: type[CompressedBackend], shape: tuple[int, ...]) -> None:
    def main(transport: LocalTransport) -> None:
        backend = face(Unit(transport))
        assert (backend.rank, backend.size, backend.world_group) == (transport.rank, 3, transport)
        buffer = torch.randn(shape, generator=torch.Generator().manual_seed(transport.rank))
        copy, sizes = buffer.clone(), error_sizes(buffer.numel(), 3)
        worker, server = torch.zeros(sizes.worker), torch.zeros(sizes.server)
        expected = worker.clone(), server.clone()
        assert backend.compressed_allreduce(buffer, worker, server, 0) is buffer
        compressed_allreduce(copy, *expected, transport, count_padding=True)
        assert list(map(as_bytes, [buffer, worker, server])) == list(map(as_bytes, [copy, *expected]))

    run_ranks(3, main)


def test_mpi_takes_no_mpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group is the whole job, and what it is made with says how MPI gets at device memory."""
    seen: list[bool] = []

    def transport(*, cuda_aware: bool) -> LocalTransport:
        seen.append(cuda_aware)
        return LocalTransport.group(1)[0]

    monkeypatch.setattr(backends, "MpiTransport", transport)
    made = [MpiBackend(), MpiBackend(True), MpiBackend(cuda_aware=True)]
    assert seen == [backend.cuda_aware for backend in made] == [False, True, True]
    assert (
        made[0].compressed_allreduce(torch.tensor([3.0] * 8), torch.zeros(8), torch.zeros(8), 0).tolist() == [3.0] * 8
    )


def test_all_processes_take_part_without_an_mpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(backends, "TorchTransport", functools.partial(_note, made))
    assert CompressedBackend().world_group is dist.group.WORLD
    assert made == [dist.group.WORLD]


def _note(made: list[object], group: object) -> LocalTransport:
    made.append(group)
    return LocalTransport.group(1)[0]


def test_without_a_process_group_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(UsageError, match=r"torch\.distributed is not initialised: call"):
        NcclBackend()
