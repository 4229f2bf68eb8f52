"""DeepSpeed's 1-bit all-reduce: its numbers against a model, and what holds for any input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gradwire.backends import LocalTransport, Transport, Work, run_ranks
from gradwire.deepspeed_comp.compressed_allreduce import compressed_allreduce, error_sizes
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import as_bytes, make_layout
from support.listening import Listening, Sent
from support.onebit_allreduce import Floats, onebit_allreduce, torch_norm
from support.onebit_calls import Rank, errors, play, values

SIZES = (1, 2, 3, 7, 8, 13, 64, 65, 127, 1009)
ORDERS = {"l1": 1, "l2": 2}


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


def test_the_first_sign_is_the_lowest_bit_and_zero_counts_as_positive() -> None:
    spy = Spying(LocalTransport.group(1)[0])
    buffer = torch.tensor([2.0, -2.0, 2.0, 2.0, -2.0, -2.0, -2.0, 0.0])
    compressed_allreduce(buffer, *errors(8, 1), spy, scale="l1")
    assert spy.message[:4].view(torch.float32).item() == 14 / 8
    assert spy.message[4:].tolist() == [0b10001101]
