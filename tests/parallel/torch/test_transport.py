from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradwire.backends.torch_dist import TorchTransport
from gradwire.compressors.errors import TransportError, UsageError

from ...backends.conformance import LENGTHS, LIMIT, Run, TransportSuite


@pytest.fixture(scope="session")
def second(transport: TorchTransport) -> TorchTransport:
    return TorchTransport(dist.new_group())


@pytest.fixture(scope="session")
def alone(transport: TorchTransport) -> TorchTransport:
    groups = [dist.new_group([rank]) for rank in range(transport.world_size)]
    return TorchTransport(groups[transport.rank])


class TestGloo(TransportSuite):
    @pytest.fixture
    def run(self, transport: TorchTransport, second: TorchTransport) -> Run:
        def run(function: Callable[..., None], groups: int = 1) -> None:
            function(*(transport, second)[:groups])

        return run


class TestPolled(TransportSuite):
    """Waiting as it is done over NCCL, where c10d's own wait must not be given a time limit."""

    @pytest.fixture
    def run(self, transport: TorchTransport, second: TorchTransport, monkeypatch: pytest.MonkeyPatch) -> Run:
        def run(function: Callable[..., None], groups: int = 1) -> None:
            for one in (transport, second):
                monkeypatch.setattr(one, "_sleeps", False)
            function(*(transport, second)[:groups])

        return run


class TestGroupOfOne(TransportSuite):
    """Each rank alone: no one to talk to, and rank 0 of its group everywhere."""

    @pytest.fixture
    def run(self, alone: TorchTransport) -> Run:
        def run(function: Callable[..., None], groups: int = 1) -> None:
            function(*[alone] * groups)

        return run


@pytest.mark.parametrize("shape", ["equal", "growing", "shrinking", "odd ranks only"])
def test_a_gather_sends_what_it_was_given_and_no_padding(
    transport: TorchTransport, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def listen(name: str, size: Callable[..., int]) -> None:
        function = getattr(dist, name)

        def listening(*args: Any, **options: Any) -> Any:
            sent.append(size(*args))
            return function(*args, **options)

        monkeypatch.setattr(dist, name, listening)

    sizes = [LENGTHS[shape](rank) for rank in range(transport.world_size)]
    others = [rank for rank in range(transport.world_size) if rank != transport.rank]
    listen("all_gather", lambda slots, tensor: tensor.nbytes * len(others))
    listen("all_to_all_single", lambda output, tensor, received, sizes: sum(sizes[rank] for rank in others))
    message = torch.full((sizes[transport.rank],), transport.rank, dtype=torch.uint8)
    gathered = transport.all_gather(message, sizes, "exact").wait(LIMIT)
    assert gathered.tolist() == [rank for rank, size in enumerate(sizes) for _ in range(size)]
    assert sent == [message.numel() * len(others)]


def test_ranks_count_within_the_group(transport: TorchTransport) -> None:
    world = transport.world_size
    backwards = TorchTransport(dist.new_group(list(reversed(range(world))), sort_ranks=False))
    assert backwards.rank == world - 1 - transport.rank
    mine = torch.tensor([transport.rank], dtype=torch.uint8)
    assert backwards.all_gather(mine, [1] * world, "order").wait(LIMIT).tolist() == list(reversed(range(world)))
    assert backwards.broadcast(mine, 0, "root").wait(LIMIT).tolist() == [world - 1]


def test_a_group_without_this_rank_is_refused(transport: TorchTransport) -> None:
    group = dist.new_group([0])
    if transport.rank == 0:
        assert TorchTransport(group).world_size == 1
    else:
        with pytest.raises(UsageError, match="not a member of the given group"):
            TorchTransport(group)


def test_an_error_of_torch_is_translated(transport: TorchTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """int16 is one that Gloo takes and fails at later: the error comes from c10d's own work."""
    monkeypatch.setattr(TorchTransport, "sum_dtypes", frozenset({torch.int16}))
    work = transport.all_reduce(torch.ones(3, dtype=torch.int16), "x")
    for _ in range(2):
        with pytest.raises(TransportError, match=r"^x: torch.distributed failed: Invalid scalar type") as caught:
            work.wait(LIMIT)
        assert isinstance(caught.value.__cause__, RuntimeError)
    assert work.done()
