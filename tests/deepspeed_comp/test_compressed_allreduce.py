"""DeepSpeed's 1-bit all-reduce: its numbers against a model, and what holds for any input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gradwire import ConfigError, TransportError, UsageError
from gradwire.backends import LocalTransport, Transport, Work, run_ranks
from gradwire.deepspeed_comp.compressed_allreduce import compressed_allreduce, error_sizes
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import as_bytes, make_layout, make_values
from support.listening import Listening, Sent
from support.onebit_allreduce import Floats, onebit_allreduce, torch_norm

SIZES = (1, 2, 3, 7, 8, 13, 64, 65, 127, 1009)
ORDERS = {"l1": 1, "l2": 2}


class Rank(NamedTuple):
    """What a rank holds after a call."""

    result: torch.Tensor
    worker_error: torch.Tensor
    server_error: torch.Tensor


def errors(numel: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    worker, server = error_sizes(numel, world_size)
    return torch.zeros(worker), torch.zeros(server)


def values(numel: int, rank: int, step: int = 0, kind: str = "normal") -> torch.Tensor:
    return make_values(kind, numel, 1000 * step + rank)


def play(
    buffers: Callable[[int, int], torch.Tensor], numel: int, steps: int, **options: Any
) -> Callable[[Transport], list[Rank]]:
    """What every rank does: `steps` calls, with copies of what it holds after each."""

    def main(transport: Transport) -> list[Rank]:
        held, after = errors(numel, transport.world_size), []
        for step in range(steps):
            result = compressed_allreduce(buffers(transport.rank, step), *held, transport, **options)
            after.append(Rank(result, *(error.clone() for error in held)))
        return after

    return main


# Its numbers.


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("scale", ["l1", "l2"])
@pytest.mark.parametrize("count_padding", [False, True])
def test_every_bit_is_the_models(world_size: int, numel: int, scale: str, count_padding: bool) -> None:
    options: dict[str, Any] = {"scale": scale, "count_padding": count_padding}
    ranks = run_ranks(world_size, play(partial(values, numel), numel, 4, **options))
    worker, server = error_sizes(numel, world_size)
    worker_errors: list[Floats] = [np.zeros(worker, np.float32)] * world_size
    server_errors: list[Floats] = [np.zeros(server, np.float32)] * world_size
    norm = partial(torch_norm, order=ORDERS[scale])
    for step in range(4):
        buffers = [values(numel, rank, step).numpy() for rank in range(world_size)]
        model = onebit_allreduce(buffers, worker_errors, server_errors, norm, **options)
        _, worker_errors, server_errors = model
        for rank, after in enumerate(ranks):
            assert as_bytes(after[step].result) == model.result.tobytes()
            assert as_bytes(after[step].worker_error) == worker_errors[rank].tobytes()
            assert as_bytes(after[step].server_error) == server_errors[rank].tobytes()


def test_ten_values_on_sixty_four_ranks_are_padded_as_deepspeed_pads_them() -> None:
    assert error_sizes(10, 64) == (4096, 64)
    assert error_sizes(4096, 64) == (4096, 64)
    assert error_sizes(1, 3) == (72, 24)
    assert error_sizes(0, 4) == (0, 0)


# What holds for any input.


class Case(NamedTuple):
    world_size: int
    numel: int
    dtype: torch.dtype
    layout: str
    kind: str
    options: dict[str, Any]

    def buffer(self, rank: int, step: int) -> torch.Tensor:
        flat = values(self.numel, rank, step, self.kind).to(self.dtype)
        return make_layout(self.layout, flat).clone(memory_format=torch.preserve_format)


cases = st.builds(
    Case,
    world_size=st.integers(1, 5),
    numel=st.sampled_from(SIZES) | st.integers(1, 3000),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    layout=st.sampled_from(["contiguous", "transposed", "strided", "channels_last", "scalar"]),
    kind=st.sampled_from(["normal", "heavy", "constant", "zeros", "spike", "tiny", "ties"]),
    options=st.fixed_dictionaries({"scale": st.sampled_from(["l1", "l2"]), "count_padding": st.booleans()}),
)


@given(case=cases)
def test_nothing_is_lost_and_all_ranks_get_the_same_bits(case: Case) -> None:
    """Mean of what came in + worker errors, + server errors in place = result + the errors after it."""
    numel, steps = case.buffer(0, 0).numel(), 3
    ranks = run_ranks(case.world_size, play(case.buffer, numel, steps, **case.options))
    owed, largest = torch.zeros(numel, dtype=torch.float64), 0.0
    for step in range(steps):
        buffers = [case.buffer(rank, step) for rank in range(case.world_size)]
        result = ranks[0][step].result
        assert all(as_bytes(after[step].result) == as_bytes(result) for after in ranks)
        assert (result.dtype, result.shape) == (buffers[0].dtype, buffers[0].shape)
        owed += torch.stack([buffer.double().reshape(-1) for buffer in buffers]).mean(0) - result.double().reshape(-1)
        left = left_out([after[step] for after in ranks], numel)
        largest = max(largest, float(owed.abs().max()), *(float(buffer.double().abs().max()) for buffer in buffers))
        torch.testing.assert_close(left, owed, rtol=0, atol=1e-5 * largest)


def left_out(ranks: list[Rank], numel: int) -> torch.Tensor:
    workers = torch.stack([rank.worker_error.double() for rank in ranks]).mean(0)
    return (workers + torch.cat([rank.server_error.double() for rank in ranks]))[:numel]


@given(case=cases)
def test_padding_never_gets_an_error(case: Case) -> None:
    case.options["count_padding"] = False
    numel = case.buffer(0, 0).numel()
    ranks = [after[-1] for after in run_ranks(case.world_size, play(case.buffer, numel, 2, **case.options))]
    assert all(not rank.worker_error[numel:].any() for rank in ranks)
    assert not torch.cat([rank.server_error for rank in ranks])[numel:].any()


@pytest.mark.parametrize("scale", ["l1", "l2"])
def test_padding_stays_out_of_the_scale_unless_it_is_counted(scale: str) -> None:
    """Ten values of magnitude 3 on 4 ranks are padded to 32."""

    def threes(*_: int) -> torch.Tensor:
        return torch.tensor([3.0, -3.0] * 5)

    assert torch.equal(run_ranks(4, play(threes, 10, 1, scale=scale))[2][0].result, threes())
    counted = run_ranks(4, play(threes, 10, 1, scale=scale, count_padding=True))
    diluted = 3 * (10 / 32) ** (1 / ORDERS[scale])
    torch.testing.assert_close(counted[2][0].result[:8].abs(), torch.full((8,), diluted))
    assert counted[0][0].worker_error[10:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_rounding_to_16_bits_leaves_out_is_an_error_too(dtype: torch.dtype) -> None:
    def same(*_: int) -> torch.Tensor:
        return torch.tensor([1.0, -0.3], dtype=dtype)

    (after,) = run_ranks(1, play(same, 2, 1))
    exact = math.sqrt(float(same().double().square().mean()))
    assert float(after[0].result[0]) != exact
    sent = after[0].result.double() + after[0].worker_error[:2] + after[0].server_error[:2]
    torch.testing.assert_close(sent, same().double(), rtol=0, atol=1e-7)


def test_a_scale_beyond_fp16_saturates_and_the_rest_follows() -> None:
    worker, server = torch.full((8,), 60000.0), torch.zeros(8)
    buffer = torch.full((8,), 60000.0, dtype=torch.float16)
    compressed_allreduce(buffer, worker, server, LocalTransport.group(1)[0], scale="l1")
    assert buffer.tolist() == [65504.0] * 8
    assert server.tolist() == [120000.0 - 65504.0] * 8


# Empty, in place, on the wire.


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_an_empty_buffer_sends_nothing_and_clears_the_errors(shape: tuple[int, ...]) -> None:
    def main(transport: Transport) -> tuple[torch.Tensor, float, list[Sent]]:
        listening = Listening(transport)
        worker, server = torch.ones(16), torch.ones(8)
        result = compressed_allreduce(torch.empty(shape), worker, server, listening)
        return result, float(worker.sum() + server.sum()), listening.sent

    for result, left, sent in run_ranks(2, main):
        assert (result.shape, left, sent) == (shape, 0.0, [])


def test_the_result_is_written_into_the_buffer_and_the_errors() -> None:
    def main(transport: Transport) -> None:
        whole = torch.randn(6, 4)
        untouched = whole[:, 1::2].clone()
        worker, server = errors(12, 2)
        views = worker.view(2, -1), server[:]
        part = whole[:, ::2]
        assert compressed_allreduce(part, *views, transport) is part
        assert torch.equal(whole[:, 1::2], untouched)
        assert len(part.abs().unique()) <= transport.world_size
        assert worker.any()
        assert server.any() or transport.rank

    run_ranks(2, main)


def test_a_parameter_may_be_the_buffer() -> None:
    parameter = torch.nn.Parameter(torch.randn(8))
    assert compressed_allreduce(parameter, *errors(8, 1), LocalTransport.group(1)[0]) is parameter
    assert parameter.grad_fn is None


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_bytes_on_the_wire(world_size: int) -> None:
    def main(transport: Transport) -> list[Sent]:
        listening = Listening(transport)
        compressed_allreduce(torch.randn(1000), *errors(1000, world_size), listening, name="m")
        return listening.sent

    nbytes = (world_size - 1) * (4 + error_sizes(1000, world_size).server // 8)
    expected = [Sent("all_to_all", "m.scatter", nbytes), Sent("all_gather", "m.gather", nbytes)]
    assert run_ranks(world_size, main) == [expected] * world_size


class Spying(Listening):
    """Keeps the messages of the first phase."""

    def all_to_all(self, tensor: torch.Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int], name: str) -> Work:
        self.message = tensor.clone()
        return super().all_to_all(tensor, send_sizes, recv_sizes, name)


def test_the_first_sign_is_the_highest_bit_and_zero_counts_as_positive() -> None:
    spy = Spying(LocalTransport.group(1)[0])
    buffer = torch.tensor([2.0, -2.0, 2.0, 2.0, -2.0, -2.0, -2.0, 0.0])
    compressed_allreduce(buffer, *errors(8, 1), spy, scale="l1")
    assert spy.message[:4].view(torch.float32).item() == 14 / 8
    assert spy.message[4:].tolist() == [0b10110001]


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
