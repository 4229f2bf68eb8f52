"""What the objects for `compression=` refuse when they are made."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from gradwire import ConfigError, ErrorFeedback, UsageError
from gradwire import TopK as Codec
from gradwire.horovod_comp import (
    BF16,
    FP8,
    FP16,
    Compression,
    Int4,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    TopK,
    TwoBit,
)

EVERY: list[Callable[..., Compression]] = [BF16, FP8, FP16, Int4, Int8, NoCompression, OneBit, RandomK, TopK, TwoBit]


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize(
    ("option", "value"),
    [("exchange", "ring"), ("bucket_bytes", 0), ("bucket_bytes", 1.5), ("timeout", 0), ("timeout", float("nan"))],
)
def test_options_out_of_range_are_refused_at_once(make: Callable[..., Compression], option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=option) as caught:
        make(**{option: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("make", EVERY)
def test_unknown_options_are_refused_at_once(make: Callable[..., Compression]) -> None:
    with pytest.raises(TypeError, match="ratios"):
        make(ratios=0.1)


def test_sums_of_what_cannot_be_added_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="RandomK"):
        TopK(exchange="all_reduce")


@pytest.mark.parametrize("make", [BF16, FP8, FP16, Int4, Int8, OneBit, RandomK, TopK, TwoBit])
def test_error_feedback_can_be_switched_off_and_shows(make: Callable[..., Compression]) -> None:
    assert "ErrorFeedback" not in repr(make(error_feedback=False))
    assert "ErrorFeedback" in repr(make(error_feedback=True))


def test_any_composition_of_the_core_will_do() -> None:
    assert "decay=0.9" in repr(Compression(ErrorFeedback(Codec(ratio=0.1), decay=0.9), timeout=5))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_has_the_same_options(copied: Callable[[Compression], Compression]) -> None:
    original = TopK(ratio=0.2, min_numel=7, timeout=5, exchange="gather")
    copy_ = copied(original)
    assert repr(copy_) == repr(original)
    assert copy_._options == {"timeout": 5, "exchange": "gather"}


def test_the_class_in_place_of_an_instance() -> None:
    with pytest.raises(UsageError, match=r"TopK\(ratio=0.01\)"):
        TopK.compress(None)  # pyright: ignore[reportArgumentType] - wrong on purpose
