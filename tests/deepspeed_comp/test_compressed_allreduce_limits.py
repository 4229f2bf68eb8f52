"""DeepSpeed's 1-bit all-reduce: what is not finite, what is refused, and how much is left out."""

from __future__ import annotations

import math

import pytest
import torch
from gradwire import ConfigError, TransportError, UsageError
from gradwire.backends import LocalTransport, Transport, run_ranks
from gradwire.deepspeed_comp.compressed_allreduce import compressed_allreduce, error_sizes
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import as_bytes
from support.listening import Listening
from support.onebit_calls import errors, play, values

SIZES = (1, 2, 3, 7, 8, 13, 64, 65, 127, 1009)
ORDERS = {"l1": 1, "l2": 2}


# What is not finite.


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("count_padding", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_poisoned_call_is_nan_everywhere_and_leaves_no_trace(
    poison: float, count_padding: bool, world_size: int
) -> None:
    """DeepSpeed's own buffers were NaN for ever after it. The square of 1e30 is not finite in fp32."""

    def buffers(rank: int, step: int) -> torch.Tensor:
        buffer = values(65, rank, step)
        if step == 1 and rank == world_size - 1:
            buffer[40] = poison
        return buffer

    ranks = run_ranks(world_size, play(buffers, 65, 3, count_padding=count_padding))
    clean = run_ranks(
        world_size, play(lambda rank, step: values(65, rank, 2 * step), 65, 2, count_padding=count_padding)
    )
    for after, expected in zip(ranks, clean, strict=True):
        assert after[1].result.isnan().all()
        assert list(map(as_bytes, after[1][1:])) == list(map(as_bytes, after[0][1:]))
        assert list(map(as_bytes, after[2])) == list(map(as_bytes, expected[1]))


def test_a_poisoned_server_error_is_noticed_on_all_ranks() -> None:
    def main(transport: Transport) -> list[torch.Tensor]:
        worker, server = errors(64, 2)
        server[3] = math.inf if transport.rank else 0.0
        return [compressed_allreduce(torch.ones(64), worker, server, transport), worker]

    for result, worker in run_ranks(2, main):
        assert result.isnan().all()
        assert not worker.any()


def test_a_failed_collective_leaves_everything_as_it_was() -> None:
    def hook(rank: int, name: str) -> None:
        if rank == 1 and name == "m.gather":
            raise TransportError("the link is down")

    def main(transport: Transport) -> None:
        buffer, held = values(100, transport.rank), errors(100, 2)
        with pytest.raises(TransportError):
            compressed_allreduce(buffer, *held, transport, name="m", timeout=5.0)
        assert torch.equal(buffer, values(100, transport.rank))
        assert not held[0].any()
        assert not held[1].any()
        transport.close()

    run_ranks(2, main, hook=hook)


# What is refused.


@pytest.mark.parametrize(
    ("worker", "server", "text"),
    [
        (error_sizes(100, 2)[0], error_sizes(100, 2)[1], "worker_error has 112 elements and server_error 56"),
        (128, 64, "100 values over 4 ranks need 128 and 32: errors of another world size"),
        (96, 24, "worker_error has 96 elements and server_error 24"),
        (104, 26, "worker_error has 104 elements"),
    ],
)
def test_errors_of_another_world_size_are_refused_before_anything_is_sent(worker: int, server: int, text: str) -> None:
    """DeepSpeed raised about mismatched or negative sizes, from within."""

    def main(transport: Transport) -> None:
        listening, buffer = Listening(transport), values(100, 0)
        with pytest.raises(UsageError, match=text):
            compressed_allreduce(buffer, torch.zeros(worker), torch.zeros(server), listening)
        assert listening.sent == []
        assert torch.equal(buffer, values(100, 0))

    run_ranks(4, main)


@pytest.mark.parametrize(
    ("buffer", "worker", "server", "text"),
    [
        (torch.ones(8, dtype=torch.int32), torch.zeros(8), torch.zeros(8), "got torch.int32, expected floating point"),
        (torch.ones(8), torch.zeros(8).half(), torch.zeros(8), "worker_error is contiguous torch.float16"),
        (torch.ones(8), torch.zeros(8), torch.zeros(16)[::2], "server_error is strided torch.float32"),
    ],
)
def test_other_tensors_are_refused(buffer: torch.Tensor, worker: torch.Tensor, server: torch.Tensor, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        compressed_allreduce(buffer, worker, server, LocalTransport.group(1)[0])


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scale is 'L1', expected one of l1, l2"):
        compressed_allreduce(torch.ones(8), *errors(8, 1), LocalTransport.group(1)[0], scale="L1")


# How much is left out.


@given(numel=st.sampled_from(SIZES), kind=st.sampled_from(["normal", "heavy", "constant", "spike", "ties"]))
def test_the_mean_magnitude_is_a_contraction_on_any_input(numel: int, kind: str) -> None:
    """||x - s sgn x||^2 = ||x||^2 (1 - ||x||_1^2 / (n ||x||^2)), which is below ||x||^2."""
    x = values(numel, numel, kind=kind)
    error = run_ranks(1, play(lambda *_: x.clone(), numel, 1, scale="l1"))[0][0].worker_error.double().norm()
    square, total = float(x.double().square().sum()), float(x.double().abs().sum())
    assert float(error) ** 2 == pytest.approx(square - total**2 / numel, rel=1e-4, abs=1e-6 * square)


def sparse(rank: int, step: int) -> torch.Tensor:
    """64 of 6400 values are not zero."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    indices = torch.randperm(6400, generator=generator)[:64]
    return torch.zeros(6400).index_copy_(0, indices, torch.randn(64, generator=generator))


def test_at_one_percent_density_l1_shrinks_what_it_is_given_in_every_step() -> None:
    for rank, after in enumerate(run_ranks(2, play(sparse, 6400, 60, scale="l1"))):
        before = torch.zeros(6400)
        for step, held in enumerate(after):
            assert held.worker_error.norm() < (sparse(rank, step) + before).norm()
            before = held.worker_error


def test_at_one_percent_density_l2_leaves_out_more_than_it_is_given() -> None:
    """By DeepSpeed's scale; the reason for l1."""
    for rank, after in enumerate(run_ranks(2, play(sparse, 6400, 1, scale="l2"))):
        assert after[0].worker_error.norm() > 1.3 * sparse(rank, 0).norm()
