from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from gradwire.backends import LocalTransport, Work, run_ranks
from gradwire.compressors.errors import ConfigError, TransportError, TransportTimeout, UsageError

from .conformance import LIMIT, Run, TransportSuite

Start = Callable[[LocalTransport], Work]


def run_in_groups(world_size: int, ordered: bool) -> Run:
    def run(function: Callable[..., None], groups: int = 1) -> None:
        others = [LocalTransport.group(world_size, ordered=ordered) for _ in range(groups - 1)]
        run_ranks(world_size, lambda one: function(one, *(other[one.rank] for other in others)), ordered=ordered)

    return run


@pytest.fixture(autouse=True)
def _one_torch_thread_per_rank() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class TestOrdered(TransportSuite):
    @pytest.fixture(params=range(1, 10), ids="world{}".format)
    def run(self, request: pytest.FixtureRequest) -> Run:
        return run_in_groups(request.param, ordered=True)


class TestMatchedByName(TransportSuite):
    @pytest.fixture
    def run(self) -> Run:
        return run_in_groups(3, ordered=False)


def data(length: int) -> torch.Tensor:
    return torch.zeros(length, dtype=torch.uint8)


def late(transport: LocalTransport) -> bool:
    """True on the last rank of three, which does something else than the first two."""
    return transport.rank == 2


def each_rank_fails(start: Start, match: str) -> None:
    """What three ranks start ends in this error on each of them, and so does whatever they start later."""

    def check(transport: LocalTransport) -> None:
        with pytest.raises(TransportError, match=f"^x: {match}"):
            start(transport).wait(LIMIT)
        with pytest.raises(TransportError, match=f"^later: {match}"):
            transport.barrier("later", LIMIT)

    run_ranks(3, check)


DIFFERENCES: dict[str, tuple[Start, str]] = {
    "operation": (
        lambda one: one.broadcast(data(3), 0, "x") if late(one) else one.all_gather(data(1), [1, 1, 1], "x"),
        "op is '.*' on rank . and '.*' on rank .",
    ),
    "dtype": (
        lambda one: one.all_reduce(torch.ones(3).double() if late(one) else torch.ones(3), "x"),
        "dtype is torch.float.. on rank . and torch.float.. on rank .",
    ),
    "length": (
        lambda one: one.all_reduce(torch.ones(4 if late(one) else 3), "x"),
        r"sizes is \(.,\) on rank . and \(.,\) on rank .",
    ),
    "lengths": (
        lambda one: one.all_gather(data(2), [2, 2, 2] if late(one) else [2, 2, 3], "x"),
        r"sizes is \(2, 2, .\) on rank . and \(2, 2, .\) on rank .",
    ),
    "root": (
        lambda one: one.broadcast(data(3), 1 if late(one) else 0, "x"),
        "root is . on rank . and . on rank .",
    ),
    "parts": (
        lambda one: one.all_to_all(data(4 if late(one) else 3), [2, 1, 1] if late(one) else [1, 1, 1], [1] * 3, "x"),
        "rank 2 sends 2 bytes to rank 0, which expects 1",
    ),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_is_an_error_on_every_rank(what: str) -> None:
    start, text = DIFFERENCES[what]
    each_rank_fails(start, f"ranks disagree: {text}")


def test_another_order_is_an_error_that_names_both() -> None:
    def check(transport: LocalTransport) -> None:
        names = ["b", "a"] if late(transport) else ["a", "b"]
        with pytest.raises(TransportError, match=r"ranks disagree: name is '[ab]' on rank . and '[ab]' on rank ."):
            transport.barrier(names[0], LIMIT)

    run_ranks(3, check)


def test_names_are_matched_whatever_the_order() -> None:
    def check(transport: LocalTransport) -> None:
        names = ["a", "b", "c", "d"]
        shifted = names[transport.rank :] + names[: transport.rank]
        works = {name: transport.all_reduce(torch.full((2,), float(ord(name))), name) for name in shifted}
        assert all(works[name].wait(LIMIT).tolist() == [4.0 * ord(name)] * 2 for name in names)

    run_ranks(4, check, ordered=False)


def test_a_name_may_be_used_again_once_its_collective_is_done() -> None:
    def check(transport: LocalTransport) -> None:
        for _ in range(5):
            assert transport.all_reduce(torch.ones(1), "again").wait(LIMIT).item() == transport.world_size

    run_ranks(3, check, ordered=False)


def test_one_rank_cannot_have_two_of_the_same_name_under_way() -> None:
    def check(transport: LocalTransport) -> None:
        if transport.rank == 0:
            transport.all_reduce(torch.ones(1), "x")
            with pytest.raises(UsageError, match=r"^x: rank 0 started it again"):
                transport.all_reduce(torch.ones(1), "x")

    run_ranks(2, check, ordered=False)


def test_sums_are_formed_in_rank_order() -> None:
    terms = [torch.tensor([value]) for value in (1e8, 1.0, -1e8, 1.0)]
    in_order = (((terms[0] + terms[1]) + terms[2]) + terms[3]).item()
    sums = run_ranks(4, lambda one: one.all_reduce(terms[one.rank].clone(), "x").wait(LIMIT).item())
    assert sums == [in_order] * 4


def test_results_come_in_rank_order() -> None:
    assert run_ranks(5, lambda one: (one.rank, one.world_size)) == [(rank, 5) for rank in range(5)]


def test_an_exception_reaches_the_caller_and_wakes_the_others() -> None:
    woken: list[str] = []

    def check(transport: LocalTransport) -> None:
        if late(transport):
            raise ValueError("no gradient")
        with pytest.raises(TransportError) as caught:
            transport.barrier("x", LIMIT)
        woken.append(str(caught.value))

    with pytest.raises(ValueError, match="no gradient") as caught:
        run_ranks(3, check)
    assert caught.value.__notes__ == ["raised on rank 2"]
    assert woken == ["x: rank 2 failed with ValueError('no gradient')"] * 2


def test_a_rank_that_returns_early_is_named() -> None:
    def check(transport: LocalTransport) -> None:
        if not late(transport):
            with pytest.raises(TransportError, match=r"^x: rank 2 left the group and never came"):
                transport.barrier("x", LIMIT)

    run_ranks(3, check)


def test_what_a_rank_had_started_before_it_left_is_finished() -> None:
    def check(transport: LocalTransport) -> int:
        work = transport.all_reduce(torch.ones(1, dtype=torch.int32), "x")
        return 3 if late(transport) else int(work.wait(LIMIT).item())

    assert run_ranks(3, check) == [3, 3, 3]


def test_a_timeout_names_the_ranks_that_have_not_come() -> None:
    def check(transport: LocalTransport) -> None:
        if transport.rank == 1:
            with pytest.raises(TransportTimeout, match=r"^x: not finished within 0.01 s; ranks \[0, 2\]"):
                transport.barrier("x", 0.01)
            done.set()
        assert done.wait(LIMIT)

    done = threading.Event()
    run_ranks(3, check)


def test_the_time_limit_ends_ranks_that_wait() -> None:
    def check(transport: LocalTransport) -> None:
        if transport.rank == 0:
            transport.barrier("x", 10 * LIMIT)
        assert released.wait(LIMIT)

    released = threading.Event()
    with pytest.raises(TransportTimeout, match=r"rank 0, rank 1 of 2 still ran after 0.05 s"):
        run_ranks(2, check, timeout=0.05, grace=0.05)
    released.set()


def test_a_hook_can_delay_or_kill_a_rank() -> None:
    def hook(rank: int, name: str) -> None:
        if rank == 1 and name == "slow":
            time.sleep(0.02)
        if rank == 1 and name == "fatal":
            raise KeyError(name)

    def check(transport: LocalTransport) -> None:
        transport.barrier("slow", LIMIT)
        transport.barrier("fatal", LIMIT)

    with pytest.raises(KeyError, match="fatal"):
        run_ranks(2, check, hook=hook)


def test_a_closed_transport_refuses_to_start() -> None:
    (transport,) = LocalTransport.group(1)
    transport.close()
    with pytest.raises(UsageError, match=r"^x: the transport of rank 0 is closed"):
        transport.barrier("x", LIMIT)


def test_a_group_needs_a_rank() -> None:
    with pytest.raises(ConfigError, match="world_size is 0"):
        run_ranks(0, lambda _: None)
