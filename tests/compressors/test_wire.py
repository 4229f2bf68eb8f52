"""The message header, and decoders that face bytes which nobody has checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire import Compressor, ConfigError, PayloadError, TopK, UsageError
from gradwire.compressors.wire import (
    FAILED,
    HEADER_BYTES,
    NON_FINITE,
    VERSION,
    Expected,
    aligned,
    read_header,
    write_header,
)
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import ALL, context

PLAN = Expected(codec_id=4, count=3, digest=0xDEADBEEF)


def message(flags: int = 0, step: int = 7, body: int = 16) -> torch.Tensor:
    buffer = torch.zeros(HEADER_BYTES + body, dtype=torch.uint8)
    write_header(buffer, PLAN, step=step, flags=flags)
    return buffer


@given(
    codec_id=st.integers(0, 255),
    count=st.integers(0, 65_535),
    digest=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**40),
    flags=st.sampled_from([0, NON_FINITE, FAILED, NON_FINITE | FAILED]),
    body=st.integers(0, 100),
)
def test_what_is_written_is_read(**fields: int) -> None:
    plan = Expected(codec_id=fields["codec_id"], count=fields["count"], digest=fields["digest"])
    buffer = torch.full((HEADER_BYTES + fields["body"],), 9, dtype=torch.uint8)
    write_header(buffer, plan, step=fields["step"], flags=fields["flags"])
    assert read_header(buffer, plan, step=fields["step"], rank=0) == fields["flags"]
    assert bool((buffer[HEADER_BYTES:] == 9).all())


@pytest.mark.parametrize(
    ("offset", "value", "text"),
    [
        (0, 0, r"magic is b'\\x00W', expected b'GW'"),
        (2, VERSION + 1, "version is 3, expected 2"),
        (2, VERSION - 1, "version is 1, expected 2"),
        (3, 5, "codec id is 5, expected 4"),
        (4, 4, "unknown flags is 4, expected 0"),
        (6, 2, "tensor count is 2, expected 3"),
        (8, 0, f"digest is {0xDEADBE00}, expected {0xDEADBEEF}"),
        (12, 8, "step is 8, expected 7"),
        (16, 17, "body length is 17, expected 16"),
    ],
)
def test_every_field_is_checked(offset: int, value: int, text: str) -> None:
    buffer = message()
    buffer[offset] = value
    with pytest.raises(PayloadError, match=f"message of rank 5: {text}"):
        read_header(buffer, PLAN, step=7, rank=5)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1])
def test_a_truncated_header_is_refused(length: int) -> None:
    with pytest.raises(PayloadError, match=f"message of rank 1: {length} bytes, a header has 24"):
        read_header(message()[:length], PLAN, step=7, rank=1)
    with pytest.raises(UsageError, match=f"at least 24 bytes, got {length}"):
        write_header(torch.zeros(length, dtype=torch.uint8), PLAN, step=0)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_message_of_another_length_is_refused(change: int) -> None:
    other = torch.zeros(message().numel() + change, dtype=torch.uint8)
    shared = min(other.numel(), message().numel())
    other[:shared] = message()[:shared]
    with pytest.raises(PayloadError, match="body length is 16"):
        read_header(other, PLAN, step=7, rank=0)


@pytest.mark.parametrize(("field", "value"), [("codec_id", 256), ("count", 65_536), ("digest", 2**32), ("count", -1)])
def test_fields_that_do_not_fit_are_refused(field: str, value: int) -> None:
    fields: dict[str, Any] = {"codec_id": 1, "count": 1, "digest": 1, field: value}
    with pytest.raises(UsageError, match=f"{field} is {value}, expected 0 to"):
        Expected(**fields)


def test_alignment() -> None:
    assert [aligned(n) for n in (0, 1, 7, 8, 9, 24)] == [0, 8, 8, 8, 16, 24]


@pytest.mark.parametrize("compressor", ALL, ids=repr)
@given(numel=st.integers(1, 400), data=st.data())
def test_decoders_survive_any_bytes(compressor: Compressor, numel: int, data: st.DataObject) -> None:
    """They refuse the payload and leave `out` alone, or they write within `out`."""
    x = torch.linspace(-1, 1, numel)
    payload = compressor.compress(x, {}, context(x)).payload.clone()
    raw = payload.view(torch.uint8)
    where = data.draw(st.lists(st.integers(0, raw.numel() - 1), max_size=8))
    for index in where:
        raw[index] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    guarded = torch.full((numel + 128,), 3.0)
    try:
        compressor.decompress_add(payload, context(x), guarded[64:-64])
    except PayloadError:
        assert bool((guarded == 3).all())
    assert bool((guarded[:64] == 3).all())
    assert bool((guarded[-64:] == 3).all())


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize(
    ("counts", "offsets"),
    [
        ([2, 1], [5, 5, 0]),
        ([2, 1], [6, 5, 0]),
        ([2, 1], [0, 1, 4]),
        ([1, 1], [0, 1, 2]),
        ([4, -1], [0, 1, 2]),
        ([3, -1], [0, 1, 2]),
        ([0, 3], [0, 1, 4]),
        ([0, 0], [0, 0, 0]),
        ([2, 1], [0, -1, 0]),
    ],
)
def test_impossible_indices_are_refused_before_anything_is_written(
    width: int, counts: list[int], offsets: list[int]
) -> None:
    """Two chunks, of which the second has four elements."""
    numel = (1 << width) + 3
    codec, x = TopK(ratio=3 / numel), torch.zeros(numel)
    payload = codec.compress(x, {}, context(x)).payload
    numbers = torch.tensor([*counts, *offsets]) & ((1 << width) - 1)
    section = numbers.to(torch.uint8) if width == 8 else numbers.to(torch.int16).view(torch.uint8)
    payload[: section.numel()] = section
    assert_refused(codec, payload, x)


@pytest.mark.parametrize("places", [[5, 5], [6, 5], [1, 65_540], [1, -1], [-1, 1]])
def test_impossible_plain_indices_are_refused_too(places: list[int]) -> None:
    codec, x = TopK(ratio=2 / 100_000), torch.zeros(100_000)[:65_540]
    payload = codec.compress(x, {}, context(x)).payload
    assert payload.numel() == 16
    payload[:8].view(torch.int32).copy_(torch.tensor(places))
    assert_refused(codec, payload, x)


def assert_refused(codec: Compressor, payload: torch.Tensor, x: torch.Tensor) -> None:
    out = torch.ones(x.numel())
    with pytest.raises(PayloadError, match="sparse payload"):
        codec.decompress_add(payload, context(x), out)
    assert bool((out == 1).all())


def test_errors_of_configuration_are_value_errors() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(PayloadError, ValueError)
