"""Error feedback: its state, and what it refuses. Its laws are in test_laws.py."""

from __future__ import annotations

import pytest
import torch
from gradwire import (
    FP16,
    Compressor,
    ConfigError,
    ErrorFeedback,
    Int8,
    NoCompression,
    RandomK,
    SizePolicy,
    TopK,
    UsageError,
)
from support.compressing import as_bytes, context


def test_the_first_residual_is_what_was_left_out() -> None:
    x = torch.tensor([3.0, 1.0, -2.0, 0.5])
    memory = ErrorFeedback(TopK(ratio=0.25))
    result = memory.compress(x, memory.init(context(x).meta), context(x))
    assert result.state["residual"].tolist() == [0.0, 1.0, -2.0, 0.5]
    again = memory.compress(x, result.state, context(x, step=1))
    assert again.state["residual"].tolist() == [3.0, 2.0, 0.0, 1.0]


def test_dropping_the_new_state_undoes_the_step() -> None:
    x = torch.linspace(-1, 1, 100)
    memory = ErrorFeedback(TopK(ratio=0.1))
    state = memory.compress(x, {}, context(x)).state
    dropped = memory.compress(x, state, context(x, step=1))
    repeated = memory.compress(x, state, context(x, step=1))
    assert as_bytes(dropped.payload) == as_bytes(repeated.payload)


def test_one_residual_around_the_whole_chain() -> None:
    memory = ErrorFeedback(TopK(ratio=0.5, values=FP16()))
    x = torch.tensor([1.0 + 2**-12, 0.25])
    result = memory.compress(x, {}, context(x))
    assert result.state["residual"].tolist() == [2**-12, 0.25]
    assert set(result.state) == {"residual", "saturated"}
    assert memory.elementwise_state == {"residual"}


def test_a_residual_that_overflows_is_refused() -> None:
    x = torch.full((4,), 3e38)
    memory = ErrorFeedback(TopK(ratio=0.25))
    first = memory.compress(x, {}, context(x))
    second = memory.compress(x, first.state, context(x))
    assert first.finite
    assert not second.finite
    assert second.state is first.state


def test_the_residual_is_fp32_whatever_the_gradient() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = torch.linspace(-1, 1, 10).to(dtype)
        assert ErrorFeedback(TopK()).compress(x, {}, context(x)).state["residual"].dtype == torch.float32


def test_scratch_becomes_the_residual_without_a_copy() -> None:
    x, scratch = torch.ones(10), torch.empty(10)
    state = ErrorFeedback(TopK()).compress(x, {}, context(x), scratch=scratch).state
    assert state["residual"].data_ptr() == scratch.data_ptr()


def test_the_old_residual_is_no_scratch() -> None:
    x = torch.ones(10)
    memory = ErrorFeedback(TopK())
    state = memory.compress(x, {}, context(x)).state
    with pytest.raises(UsageError, match="scratch shares memory with the old residual"):
        memory.compress(x, state, context(x), scratch=state["residual"])


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (ErrorFeedback(TopK()), "has a residual already"),
        (SizePolicy(ErrorFeedback(TopK())), "has a residual already"),
        (NoCompression(), "loses nothing"),
        (RandomK(error_feedback=False), "use RandomK"),
    ],
)
def test_nonsense_is_refused(inner: Compressor, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ErrorFeedback(inner)


def test_a_class_is_not_a_compressor() -> None:
    with pytest.raises(ConfigError, match="expected a compressor such as"):
        ErrorFeedback(TopK)  # pyright: ignore[reportArgumentType] - wrong on purpose


@pytest.mark.parametrize("decay", [0, -1.0, 1.5, float("nan"), "1", True, None])
def test_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match=r"decay is .*, expected a number in \(0, 1\]"):
        ErrorFeedback(Int8(), decay=decay)
