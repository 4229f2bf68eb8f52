from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import torch
from gradwire.backends.mpi import MpiTransport
from gradwire.compressors.errors import TransportError, UnsupportedError, UsageError
from mpi4py import MPI

from ...backends.conformance import LIMIT, Run, TransportSuite


@pytest.fixture(scope="session")
def half(transport: MpiTransport) -> Iterator[MPI.Comm]:
    """The even ranks, or the odd ones."""
    comm = MPI.COMM_WORLD.Split(transport.rank % 2)
    yield comm
    comm.Free()


class TestMpi(TransportSuite):
    @pytest.fixture
    def run(self, transport: MpiTransport) -> Run:
        def run(function: Callable[..., None], groups: int = 1) -> None:
            with ExitStack() as stack:
                others = [stack.enter_context(closing(MpiTransport())) for _ in range(groups - 1)]
                function(transport, *others)

        return run


class TestPartOfTheRanks(TransportSuite):
    """Two communicators at once, of even and of odd ranks: ranks count within the group."""

    @pytest.fixture
    def run(self, half: MPI.Comm) -> Run:
        def run(function: Callable[..., None], groups: int = 1) -> None:
            with ExitStack() as stack:
                function(*(stack.enter_context(closing(MpiTransport(half))) for _ in range(groups)))

        return run


def test_it_does_not_meet_what_others_do_on_the_same_communicator(transport: MpiTransport) -> None:
    theirs = torch.ones(3)
    request = MPI.COMM_WORLD.Iallreduce(MPI.IN_PLACE, theirs.numpy())
    assert transport.all_reduce(torch.full((3,), 2.0), "ours").wait(LIMIT).tolist() == [2.0 * transport.world_size] * 3
    request.Wait()
    assert theirs.tolist() == [transport.world_size] * 3


def test_more_than_mpi_can_count_is_refused(transport: MpiTransport) -> None:
    with pytest.raises(UnsupportedError, match=r"^x: 2147483648 elements, MPI counts no more than 2147483647: use a"):
        transport.broadcast(torch.empty(2**31, dtype=torch.uint8), 0, "x")


def test_a_closed_transport_refuses_to_start(transport: MpiTransport) -> None:
    other = MpiTransport()
    other.close()
    other.close()
    with pytest.raises(UsageError, match=r"^x: the transport is closed"):
        other.barrier("x", LIMIT)
    transport.barrier("the first one is not", LIMIT)


def test_a_communicator_without_this_rank_is_refused(transport: MpiTransport) -> None:
    first = MPI.COMM_WORLD.Split(0 if transport.rank == 0 else MPI.UNDEFINED)
    if transport.rank == 0:
        assert MpiTransport(first).world_size == 1
    else:
        with pytest.raises(UsageError, match="this process is not in the given communicator"):
            MpiTransport(first)


def test_an_error_of_mpi_is_translated() -> None:
    """The ranks that get more than they expect are told so."""
    with closing(MpiTransport()) as other:
        work = other.broadcast(torch.zeros(9 if other.rank == 0 else 4, dtype=torch.uint8), 0, "x")
        for _ in range(2):
            if other.rank == 0:
                assert work.wait(LIMIT).tolist() == [0] * 9
            else:
                with pytest.raises(TransportError, match=r"^x: MPI failed: .*truncated") as caught:
                    work.wait(LIMIT)
                assert isinstance(caught.value.__cause__, MPI.Exception)
