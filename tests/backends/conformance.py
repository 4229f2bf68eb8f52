"""What every transport must do. One suite, run by ranks that are threads and by ranks that are processes.

A subclass named `Test…` gives a fixture `run`: it calls a function with a transport on every rank (with threads)
or on this rank (where each rank is a process that runs the same tests). All comparisons between ranks are made
through the transport itself, so that the suite does not care which.
"""

from __future__ import annotations

import functools
import gc
import hashlib
from collections.abc import Callable
from typing import Protocol

import pytest
import torch
from gradwire.backends.transport import Transport, Work
from gradwire.compressors.errors import TransportTimeout, UsageError

__all__ = ["LIMIT", "Run", "TransportSuite"]

LIMIT = 30.0
#: elements; the last one is more than 1 MiB as fp32
SIZES = (0, 1, 3, 4, 100, 1000, 10000, 300001)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)
#: bytes that rank r sends are LENGTHS[kind](r)
LENGTHS: dict[str, Callable[[int], int]] = {
    "nothing": lambda _: 0,
    "equal": lambda _: 5,
    "growing": lambda rank: 3 * rank,
    "shrinking": lambda rank: max(0, 7 - 3 * rank),
    "odd ranks only": lambda rank: 1001 * (rank % 2),
    "one is large": lambda rank: 1_200_000 if rank == 0 else 2,
}


class Run(Protocol):
    """Calls `function` with as many transports, each over a group of its own, as `groups` says."""

    def __call__(self, function: Callable[..., None], groups: int = 1) -> None: ...


@functools.cache
def _normal(numel: int, rank: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 + rank), dtype=torch.float64)


def numbers(numel: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Values that depend on the rank, and whose sum depends on the order in which it is formed."""
    return (_normal(numel, rank) * (1 if dtype.is_floating_point else 1000)).to(dtype)


def message(length: int, sender: int, receiver: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * sender + receiver)
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator)


def assert_ranks_agree(transport: Transport, tensor: torch.Tensor, name: str) -> None:
    """Bitwise equality over the ranks, through a gather of digests."""
    mine = hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).digest()
    sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    gathered = transport.all_gather(sent, [len(mine)] * transport.world_size, f"{name}.agree").wait(LIMIT)
    assert bytes(gathered.tolist()) == mine * transport.world_size


class TransportSuite:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("numel", SIZES)
    def test_all_reduce_adds_in_place_and_bitwise_equal(self, run: Run, numel: int, dtype: torch.dtype) -> None:
        def check(transport: Transport) -> None:
            name = f"sum.{numel}.{dtype}"
            mine = numbers(numel, transport.rank, dtype)
            if dtype not in transport.sum_dtypes:
                with pytest.raises(UsageError, match=f"cannot add {dtype}"):
                    transport.all_reduce(mine, name)
                return
            result = transport.all_reduce(mine, name).wait(LIMIT)
            assert result.data_ptr() == mine.data_ptr()
            exact = torch.stack([numbers(numel, rank, dtype).double() for rank in range(transport.world_size)]).sum(0)
            tolerance = 8 * transport.world_size * torch.finfo(dtype).eps if dtype.is_floating_point else 0
            torch.testing.assert_close(mine.double(), exact, rtol=0, atol=tolerance)
            assert_ranks_agree(transport, mine, name)

        run(check)

    @pytest.mark.parametrize("kind", LENGTHS)
    def test_all_gather_joins_in_rank_order(self, run: Run, kind: str) -> None:
        def check(transport: Transport) -> None:
            sizes = [LENGTHS[kind](rank) for rank in range(transport.world_size)]
            mine = message(sizes[transport.rank], transport.rank)
            result = transport.all_gather(mine, sizes, f"gather.{kind}").wait(LIMIT)
            assert torch.equal(result, torch.cat([message(size, rank) for rank, size in enumerate(sizes)]))
            mine.fill_(255)
            result.fill_(0)
            assert bool((mine == 255).all())

        run(check)

    @pytest.mark.parametrize("kind", LENGTHS)
    def test_all_to_all_delivers_each_part(self, run: Run, kind: str) -> None:
        def check(transport: Transport) -> None:
            def length(sender: int, receiver: int) -> int:
                return LENGTHS[kind]((sender + 2 * receiver) % transport.world_size)

            ranks, me = range(transport.world_size), transport.rank
            sent = torch.cat([message(length(me, rank), me, rank) for rank in ranks])
            to, of = [length(me, rank) for rank in ranks], [length(rank, me) for rank in ranks]
            result = transport.all_to_all(sent, to, of, f"scatter.{kind}").wait(LIMIT)
            assert torch.equal(result, torch.cat([message(length(rank, me), rank, me) for rank in ranks]))

        run(check)

    @pytest.mark.parametrize("length", [0, 1, 1000, 1_200_000])
    def test_broadcast_from_each_root(self, run: Run, length: int) -> None:
        def check(transport: Transport) -> None:
            for root in range(transport.world_size):
                mine = message(length, transport.rank)
                result = transport.broadcast(mine, root, f"broadcast.{length}.{root}").wait(LIMIT)
                assert result.data_ptr() == mine.data_ptr()
                assert torch.equal(mine, message(length, root))

        run(check)

    def test_a_sum_of_nan_and_inf_reaches_all_ranks(self, run: Run) -> None:
        def check(transport: Transport) -> None:
            last = transport.rank == transport.world_size - 1
            mine = torch.tensor([float("nan"), float("inf"), 1.0]) if last else torch.ones(3)
            transport.all_reduce(mine, "poison").wait(LIMIT)
            assert bool(mine[0].isnan())
            assert mine[1:].tolist() == [float("inf"), transport.world_size]

        run(check)

    def test_a_part_of_a_larger_tensor(self, run: Run) -> None:
        def check(transport: Transport) -> None:
            whole = torch.full((10,), 2.0)
            transport.all_reduce(whole[3:7], "part").wait(LIMIT)
            assert whole.tolist() == [2.0] * 3 + [2.0 * transport.world_size] * 4 + [2.0] * 3

        run(check)

    def test_many_under_way_waited_for_in_reverse(self, run: Run) -> None:
        def check(transport: Transport) -> None:
            world = transport.world_size
            works: list[tuple[Work, float]] = []
            for i in range(60):
                works.append((transport.all_reduce(torch.full((50 + i,), float(i)), f"many.sum.{i}"), i * world))
                works.append((transport.all_gather(message(4, i), [4] * world, f"many.gather.{i}"), -1))
                works.append((transport.broadcast(message(i, transport.rank), 0, f"many.broadcast.{i}"), -1))
            for work, value in reversed(works):
                result = work.wait(LIMIT)
                assert value < 0 or bool((result == value).all())

        run(check)

    def test_buffers_outlive_their_callers_references(self, run: Run) -> None:
        """Case 27: nothing is freed or reused between start and wait."""

        def check(transport: Transport) -> None:
            world = transport.world_size
            works = [transport.all_reduce(torch.full((5000,), float(i)), f"kept.{i}") for i in range(200)]
            gathers = [transport.all_gather(message(99, transport.rank), [99] * world, f"kept.g.{i}") for i in range(9)]
            gc.collect()
            _ = [torch.full((5000,), -1.0) for _ in range(200)]
            for i, work in enumerate(works):
                assert bool((work.wait(LIMIT) == i * world).all())
            expected = torch.cat([message(99, rank) for rank in range(world)])
            assert all(torch.equal(work.wait(LIMIT), expected) for work in gathers)

        run(check)

    def test_a_dropped_work_still_happens(self, run: Run) -> None:
        def check(transport: Transport) -> None:
            for i in range(20):
                transport.all_gather(message(5000, i), [5000] * transport.world_size, f"dropped.{i}")
            gc.collect()
            mine = torch.ones(3)
            transport.all_reduce(mine, "after the dropped ones").wait(LIMIT)
            assert mine.tolist() == [transport.world_size] * 3

        run(check)

    def test_wait_may_be_repeated_and_done_stays_true(self, run: Run) -> None:
        def check(transport: Transport) -> None:
            sum_ = transport.all_reduce(torch.ones(4), "twice.sum")
            gather = transport.all_gather(message(3, transport.rank), [3] * transport.world_size, "twice.gather")
            for work in (sum_, gather):
                first = work.wait(LIMIT)
                assert work.done()
                assert work.wait(0.0) is first
                assert work.done()
            assert sum_.wait(LIMIT).tolist() == [transport.world_size] * 4

        run(check)

    def test_a_late_rank_costs_a_timeout_and_nothing_else(self, run: Run) -> None:
        def check(transport: Transport, other: Transport) -> None:
            mine = torch.ones(3)
            if transport.rank == 0:
                work = transport.all_reduce(mine, "late")
                if transport.world_size > 1:
                    for limit in (0.05, 0.0):
                        with pytest.raises(TransportTimeout, match=r"^late: "):
                            work.wait(limit)
                    assert not work.done()
                other.barrier("rank 0 has lost patience", LIMIT)
            else:
                other.barrier("rank 0 has lost patience", LIMIT)
                work = transport.all_reduce(mine, "late")
            assert work.wait(LIMIT).tolist() == [transport.world_size] * 3
            transport.barrier("still in step", LIMIT)

        run(check, groups=2)

    def test_no_one_passes_a_barrier_before_all_have_come(self, run: Run) -> None:
        def check(transport: Transport, other: Transport) -> None:
            if transport.rank == 0 and transport.world_size > 1:
                with pytest.raises(TransportTimeout, match=r"^gate: "):
                    transport.barrier("gate", 0.05)
            other.barrier("rank 0 was held", LIMIT)
            if transport.rank > 0:
                transport.barrier("gate", LIMIT)
            other.barrier("all are through", LIMIT)

        run(check, groups=2)

    def test_wrong_arguments_are_refused_before_anything_is_sent(self, run: Run) -> None:
        def check(transport: Transport) -> None:
            world, rank = transport.world_size, transport.rank
            ones, data = [1] * world, torch.zeros(world, dtype=torch.uint8)
            refused: list[tuple[str, Callable[[], Work]]] = [
                ("a: got shape \\(2, 2\\)", lambda: transport.all_reduce(torch.zeros(2, 2), "a")),
                ("b: got shape \\(3,\\)", lambda: transport.all_reduce(torch.zeros(6)[::2], "b")),
                ("c: .* cannot add torch.bool", lambda: transport.all_reduce(torch.zeros(2, dtype=torch.bool), "c")),
                ("d: got torch.float32", lambda: transport.all_gather(torch.zeros(1), ones, "d")),
                (f"e: .* {world} lengths", lambda: transport.all_gather(data[:1], [*ones, 1], "e")),
                (f"f: .* {world} lengths", lambda: transport.all_gather(data[:0], [-1] * world, "f")),
                (f"g: rank {rank} sends 0 bytes, .* 1", lambda: transport.all_gather(data[:0], ones, "g")),
                (f"h: {world} bytes .* {2 * world}", lambda: transport.all_to_all(data, [2] * world, ones, "h")),
                (f"i: rank {rank} sends 1 bytes to itself", lambda: transport.all_to_all(data, ones, [2] * world, "i")),
                (f"j: root is {world}, .* 0 to {world - 1}", lambda: transport.broadcast(data, world, "j")),
                ("k: root is -1", lambda: transport.broadcast(data, -1, "k")),
                ("l: got torch.float64", lambda: transport.broadcast(torch.zeros(1).double(), 0, "l")),
            ]
            for text, call in refused:
                with pytest.raises(UsageError, match=f"^{text}"):
                    call()
            transport.barrier("nothing was started", LIMIT)

        run(check)
