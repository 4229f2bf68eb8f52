from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

import horovod.torch
import pytest
import torch
from gradwire.compressors.errors import TransportError, UsageError
from gradwire.horovod_comp.transport import CollectiveError, HorovodTransport, HorovodWork
from horovod.torch import mpi_ops

from ...backends.conformance import LIMIT, Run, TransportSuite, message

Sets = dict[str, horovod.torch.ProcessSet]


class TestHorovod(TransportSuite):
    @pytest.fixture
    def run(self, transport: HorovodTransport) -> Run:
        def run(function: Callable[..., None], groups: int = 1) -> None:
            function(transport, *(HorovodTransport() for _ in range(groups - 1)))

        return run


class TestPartOfTheRanks:
    """Two process sets at once, of even and of odd ranks: ranks count within the set."""

    test_all_gather = TransportSuite.test_all_gather_joins_in_rank_order
    test_all_to_all = TransportSuite.test_all_to_all_delivers_each_part
    test_broadcast = TransportSuite.test_broadcast_from_each_root
    test_many_under_way = TransportSuite.test_many_under_way_waited_for_in_reverse
    test_late_rank = TransportSuite.test_a_late_rank_costs_a_timeout_and_nothing_else

    @pytest.fixture
    def run(self, hvd: ModuleType, process_sets: Sets) -> Run:
        process_set = next(process_sets[name] for name in ("even", "odd") if process_sets[name].included())

        def run(function: Callable[..., None], groups: int = 1) -> None:
            function(*(HorovodTransport(process_set) for _ in range(groups)))

        return run


def gather(transport: HorovodTransport, name: str, length: int = 40) -> HorovodWork:
    work = transport.all_gather(message(length, transport.rank), [length] * transport.world_size, name)
    assert isinstance(work, HorovodWork)
    return work


def gathered(transport: HorovodTransport, length: int = 40) -> torch.Tensor:
    return torch.cat([message(length, rank) for rank in range(transport.world_size)])


def test_horovod_may_wait_for_the_handle_itself(transport: HorovodTransport, hvd: ModuleType) -> None:
    work = gather(transport, "theirs")
    hvd.synchronize(work.handle)
    assert work.done()
    assert torch.equal(work.wait(0.0), gathered(transport))


def test_a_handle_that_horovod_made_its_own_is_not_cleared(transport: HorovodTransport, hvd: ModuleType) -> None:
    """What happens to the handle of a group: Horovod puts its own entry into the map and waits for it later."""
    work = gather(transport, "lent")
    mpi_ops._handle_map[work.handle] = ("inputs", "outputs")
    assert torch.equal(work.wait(LIMIT), gathered(transport))
    assert hvd.synchronize(work.handle) == "outputs"
    assert torch.equal(work.wait(0.0), gathered(transport))


def test_it_leaves_nothing_in_the_map(transport: HorovodTransport) -> None:
    before = dict(mpi_ops._handle_map)
    gather(transport, "clean").wait(LIMIT)
    transport.barrier("clean", LIMIT)
    assert mpi_ops._handle_map == before


def test_names_are_matched_not_the_order(transport: HorovodTransport) -> None:
    names = [f"order.{i}" for i in range(10)]
    turned = names if transport.rank % 2 else names[::-1]
    works = {name: transport.all_reduce(torch.full((3,), float(name[-1])), name) for name in turned}
    for name, work in works.items():
        assert work.wait(LIMIT).tolist() == [float(name[-1]) * transport.world_size] * 3


@pytest.mark.parametrize("calls", [2, 3])
def test_no_gather_can_be_answered_by_the_response_cache(transport: HorovodTransport, calls: int) -> None:
    """Horovod compares the shape with the one of the last call of that name; a cached gather breaks `hvd.join()`."""
    shapes = []
    for current in (transport, HorovodTransport()):
        for _ in range(calls):
            work = gather(current, f"uncached.{calls}")
            shapes.append(mpi_ops._handle_map[work.handle][0].shape)
            assert work.wait(LIMIT).shape == (40 * transport.world_size,)
    assert all(before != after for before, after in pairwise(shapes))


def test_ranks_that_disagree_get_an_error_each(transport: HorovodTransport, hvd: ModuleType) -> None:
    if transport.world_size == 1:
        return
    work = transport.all_reduce(torch.ones(3 + transport.rank), "lengths")
    with pytest.raises(CollectiveError, match=r"^lengths: Mismatched ALLREDUCE tensor shapes") as caught:
        work.wait(LIMIT)
    assert isinstance(caught.value, TransportError)
    assert isinstance(caught.value, hvd.HorovodInternalError)
    with pytest.raises(CollectiveError, match=r"^lengths: "):
        work.wait(LIMIT)
    transport.barrier("Horovod goes on", LIMIT)


def test_the_same_name_twice_at_once_is_refused(transport: HorovodTransport) -> None:
    if transport.rank == 0:
        work = transport.all_reduce(torch.ones(2), "double")
        if transport.world_size > 1:
            with pytest.raises(TransportError, match=r"^double: "):
                transport.all_reduce(torch.ones(2), "double")
        transport.barrier("double.gate", LIMIT)
    else:
        transport.barrier("double.gate", LIMIT)
        work = transport.all_reduce(torch.ones(2), "double")
    assert work.wait(LIMIT).tolist() == [transport.world_size] * 2


def test_waiting_leaves_the_processor_to_others(transport: HorovodTransport) -> None:
    """Rank 0 waits for a rank that comes late: its thread runs for a small part of that time only."""
    if transport.rank == 0:
        ran, passed = time.thread_time(), time.perf_counter()
        transport.barrier("late", LIMIT)
        passed = time.perf_counter() - passed
        assert time.thread_time() - ran < 0.5 * passed or passed < 0.1
    else:
        time.sleep(0.5)
        transport.barrier("late", LIMIT)


def test_a_rank_outside_of_the_process_set_is_refused(hvd: ModuleType, process_sets: Sets) -> None:
    for process_set in process_sets.values():
        ranks = list(process_set.ranks or [])
        if hvd.rank() in ranks:
            transport = HorovodTransport(process_set)
            assert (transport.rank, transport.world_size) == (ranks.index(hvd.rank()), len(ranks))
        else:
            with pytest.raises(UsageError, match=f"^rank {hvd.rank()} is not in the process set of ranks "):
                HorovodTransport(process_set)


def test_a_set_that_is_not_registered_is_refused(hvd: ModuleType) -> None:
    with pytest.raises(UsageError, match=r"is not registered: pass it to hvd.init\(\)"):
        HorovodTransport(hvd.ProcessSet([0]))
