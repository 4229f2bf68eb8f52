"""`hvd.allreduce` and `hvd.grouped_allreduce` with `compression=`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import horovod.torch as hvd
import pytest
import torch
from gradwire import UsageError
from gradwire.horovod_comp import BF16, FP8, FP16, Compression, Int4, Int8, NoCompression, OneBit, RandomK, TopK, TwoBit
from support.horovod_training import assert_ranks_equal, bits, noise, states

pytestmark = pytest.mark.usefixtures("hvd")


def exact(shape: tuple[int, ...], *key: object) -> torch.Tensor:
    """The mean over the ranks of `noise(shape, *key, rank)`."""
    return torch.stack([noise(shape, *key, rank).double() for rank in range(hvd.size())]).mean(0).float()


def test_named_calls_feed_back_what_was_left_out() -> None:
    """Plain error-feedback top-k, written down for one tensor, is the oracle."""
    compression = TopK(ratio=0.1, min_numel=0)
    size = hvd.size()
    memory = [torch.zeros(60) for _ in range(size)]
    for step in range(4):
        expected = torch.zeros(60)
        for rank in range(size):
            total = noise((60,), step, rank) + memory[rank]
            kept = torch.zeros(60)
            top = total.abs().topk(6).indices
            kept[top] = total[top]
            memory[rank] = total - kept
            expected += kept / size
        x = noise((60,), step, hvd.rank()).view(6, 10)
        result = hvd.allreduce(x, name="weights", compression=compression)
        torch.testing.assert_close(result, expected.view(6, 10), rtol=0, atol=3e-7)
        assert_ranks_equal([result])


def test_names_keep_their_residuals_apart() -> None:
    compression = TopK(ratio=0.1, min_numel=0)
    together, apart = {}, {}
    for step in range(3):
        for name in ("a", "b"):
            together[name] = hvd.allreduce(noise((8, 9), name, step, hvd.rank()), name=name, compression=compression)
    for name in ("a", "b"):
        own = TopK(ratio=0.1, min_numel=0)
        for step in range(3):
            apart[name] = hvd.allreduce(noise((8, 9), name, step, hvd.rank()), name=name, compression=own)
    assert all(torch.equal(together[name], apart[name]) for name in together)


def test_without_a_name_there_is_no_memory_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    compression = OneBit(block=8, min_numel=0)
    with caplog.at_level(logging.INFO, logger="gradwire"):
        results = [hvd.allreduce(noise((8, 8), hvd.rank()), compression=compression) for _ in range(3)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not states(compression)
    assert [record.getMessage() for record in caplog.records if "without name=" in record.getMessage()] == [
        "hvd.allreduce without name=: a residual has no name to be kept by, so error feedback is off for it"
    ]


@pytest.mark.parametrize("grouped", [False, True], ids=["one", "grouped"])
@pytest.mark.parametrize("compression", [NoCompression, FP16, BF16, TopK, RandomK, OneBit, Int8, Int4, FP8, TwoBit])
def test_the_input_is_not_changed(compression: Callable[..., Compression], grouped: bool) -> None:
    x = noise((40, 50), hvd.rank())
    before = x.clone()
    for _ in range(3):
        made = compression() if not grouped else compression(exchange="gather")
        if grouped:
            hvd.grouped_allreduce([x, x], name="same", compression=made)
        else:
            hvd.allreduce(x, name="same", compression=made)
    assert torch.equal(x, before)


def test_sum_average_and_factors() -> None:
    x = noise((8, 8), hvd.rank())
    mean, compression = exact((8, 8)), NoCompression()
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
    average = hvd.allreduce(x, name="average", op=hvd.Average, compression=compression)
    close(average, mean)
    total = hvd.allreduce(x, name="sum", op=hvd.Sum, compression=compression)
    close(total, hvd.size() * mean)
    scaled = hvd.allreduce(x, name="scaled", prescale_factor=0.5, postscale_factor=6.0, compression=compression)
    close(scaled, 3.0 * mean)
    group = hvd.grouped_allreduce(
        [x, x], name="group", op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, compression=compression
    )
    for result in group:
        close(result, 2.0 * hvd.size() * mean)


@pytest.mark.parametrize(
    "compression", [lambda: NoCompression(), lambda: TopK(ratio=0.2), lambda: TopK(ratio=0.2, min_numel=0)]
)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 4), (7,), (3, 4)], ids=str)
def test_shapes(shape: tuple[int, ...], compression: Callable[..., Compression]) -> None:
    x = noise(shape, shape, hvd.rank())
    made = compression()
    hvd.allreduce(x, name=f"shape {shape}", compression=made)
    result = hvd.allreduce(x, name=f"shape {shape}", compression=made)
    assert result.shape == x.shape
    assert result.dtype == x.dtype
    assert_ranks_equal([result])
    if made.statistics.tensors[0].dense_reason is not None:
        torch.testing.assert_close(result, exact(shape, shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compression", [NoCompression, FP16, BF16, OneBit], ids=lambda factory: factory.__name__)
def test_dtypes_mixed_in_a_group(compression: Callable[..., Compression]) -> None:
    dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
    tensors = [noise((6, 5), hvd.rank()).to(dtype) for dtype in dtypes]
    results = hvd.grouped_allreduce(tensors, name="mixed", compression=compression())
    assert [result.dtype for result in results] == dtypes
    assert_ranks_equal(results)
    for result in results:
        torch.testing.assert_close(result.float(), exact((6, 5)), rtol=0.02, atol=0.02)


def test_a_grouped_call_equals_single_calls() -> None:
    tensors = {"w.0": noise((20, 9), 0, hvd.rank()), "w.1": noise((9, 30), 1, hvd.rank())}
    single, group = (OneBit(block=8, min_numel=0, exchange="gather") for _ in range(2))
    for _ in range(3):
        expected = [hvd.allreduce(x, name=name, compression=single) for name, x in tensors.items()]
        results = hvd.grouped_allreduce(list(tensors.values()), name="w", compression=group)
        assert [bits(result) for result in results] == [bits(result) for result in expected]


def test_one_name_for_different_shapes() -> None:
    compression = TopK(ratio=0.1, min_numel=0)
    for shape in ((4, 5), (7, 8), (4, 5)):
        result = hvd.allreduce(noise(shape, hvd.rank()), name="changing", compression=compression)
        assert result.shape == shape
        assert_ranks_equal([result])


def test_non_contiguous_input() -> None:
    x = noise((6, 9), hvd.rank()).t()
    result = hvd.allreduce(x, name="transposed", compression=NoCompression())
    torch.testing.assert_close(result, exact((6, 9)).t(), rtol=1e-5, atol=1e-6)


def test_gradients_do_not_flow_through() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(UsageError, match="detach"):
        hvd.allreduce(x, name="differentiable", compression=FP16())
    assert torch.equal(hvd.allreduce(x.detach(), name="detached", compression=FP16()), torch.ones(3))


def test_whole_numbers_are_added_up_exactly() -> None:
    """Counters of a metric go through the same call."""
    x = torch.tensor([2**20 + hvd.rank(), hvd.rank()])
    result = hvd.allreduce(x, name="count", op=hvd.Sum, compression=TopK())
    size = hvd.size()
    assert result.tolist() == [size * 2**20 + size * (size - 1) // 2, size * (size - 1) // 2]
