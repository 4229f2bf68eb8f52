"""Native top-k with coded values, in one kernel, does what its parts do one after the other in the reference."""

from __future__ import annotations

import pytest
import torch
from gradwire import PayloadError
from gradwire.compressors.kernels import (
    E4M3,
    E5M2,
    INT4,
    INT8,
    Coding,
    Feed,
    blocks_of,
    indices_of,
    native,
    reference,
    reference_only,
)
from gradwire.compressors.kernels.reference.coded import Parts
from hypothesis import given
from hypothesis import strategies as st
from support.native_cases import (
    FORMS,
    LONG,
    VALUES,
    Fed,
    check_decoder,
    check_encoder,
    fed,
    means_agree,
    needs_native,
    running,
    same_bits,
    shifted,
    some_bytes,
    values,
)

pytestmark = needs_native

SHARES = st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.4, 0.6, 1.0])
#: held as a whole while they are coded, or not
BLOCKS = st.sampled_from([4, 8, 12, 64, 256, 1000, 2048, 2052, 65_544, 1 << 31])
SEEDS = st.none() | st.integers(0, (1 << 64) - 1)
CASTS = st.sampled_from([torch.float16, torch.bfloat16]).map(Coding)
LEVELS = st.builds(Coding, st.sampled_from([INT8, INT4]), BLOCKS, SEEDS) | st.builds(
    Coding, st.sampled_from([E4M3, E5M2]), BLOCKS | st.integers(1, 9), st.none()
)
TWO_BITS = st.builds(Coding, st.none(), BLOCKS, st.none())
#: at most half of 131 071 reach what samples tell
SAMPLED = st.sampled_from([16_384, 65_535, 131_071])


def size(case: Fed, k: int, coding: Coding, exact: bool) -> int:
    return indices_of(case.n, k, exact).nbytes + coding.nbytes(k)


@given(case=fed() | fed(SAMPLED), share=SHARES, exact=st.booleans(), coding=CASTS | LEVELS)
def test_casts_and_levels(case: Fed, share: float, exact: bool, coding: Coding) -> None:
    k = max(1, int(share * case.n))
    check_encoder(
        case,
        some_bytes(size(case, k, coding, exact)),
        lambda feed, out: reference.coded_encode(feed, k, out, coding, exact),
        lambda feed, out: native.coded_encode(feed, k, out, coding, exact, case.threads),
    )


@given(case=fed() | fed(SAMPLED), share=SHARES, exact=st.booleans(), coding=TWO_BITS)
def test_two_bits(case: Fed, share: float, exact: bool, coding: Coding) -> None:
    """Magnitudes are means, which may differ in the last place; the codes agree, and rest is what they leave."""
    k = max(1, int(share * case.n))
    feeds, payloads = (case.feed(), case.feed()), [some_bytes(size(case, k, coding, exact)) for _ in range(2)]
    expected = reference.coded_encode(feeds[0], k, payloads[0], coding, exact)
    with running(case.isa):
        assert native.coded_encode(feeds[1], k, payloads[1], coding, exact, case.threads) == expected
    if expected < 0:
        return
    start = indices_of(case.n, k, exact).nbytes
    stop = start + 8 * blocks_of(k, coding.block)
    assert same_bits(payloads[1][:start], payloads[0][:start])
    assert means_agree(payloads[1][start:stop].view(torch.float32), payloads[0][start:stop].view(torch.float32))
    assert same_bits(payloads[1][stop:], payloads[0][stop:])
    rest = feeds[1].rest
    if rest is not None:
        left, _ = reference.total(case.feed())
        reference.coded_decode_add(payloads[1], k, coding, left, -1.0, exact)
        assert same_bits(rest.abs(), left.abs())  # which is -0 where all of -0 was sent


@pytest.mark.parametrize("coding", [Coding(torch.float16), Coding(INT4, 256, 7), Coding(E4M3, 1000)])
@pytest.mark.parametrize("rest", ["own", "x"])
@pytest.mark.parametrize("isa", FORMS)
def test_long_tensors(isa: str, rest: str, coding: Coding) -> None:
    case, k = Fed(values("heavy", LONG, 1), values("normal", LONG, 2), 0.9, rest, 1, isa, threads=2), LONG // 50
    for exact in (True, False):
        check_encoder(
            case,
            some_bytes(size(case, k, coding, exact)),
            lambda feed, out, exact=exact: reference.coded_encode(feed, k, out, coding, exact),
            lambda feed, out, exact=exact: native.coded_encode(feed, k, out, coding, exact, 2),
        )


@st.composite
def coded(draw: st.DrawFn) -> tuple[torch.Tensor, int, int, Coding, bool]:
    """A payload of an encoder, often with a few other bytes; n, k, how values are coded, and whether it has all k."""
    n = draw(st.integers(1, 3000) | st.sampled_from([65_535, 70_000, 131_071]))
    k = max(1, int(draw(SHARES) * n))
    coding, exact = draw(CASTS | LEVELS | TWO_BITS), draw(st.booleans())
    places = indices_of(n, k, exact).nbytes
    payload = some_bytes(places + coding.nbytes(k))
    x = values(draw(st.sampled_from(VALUES)), n, draw(st.integers(0, 1 << 20)))
    assert reference.coded_encode(Feed(x), k, payload, coding, exact) >= 0
    for _ in range(draw(st.integers(0, 3))):
        payload[draw(st.integers(0, payload.numel() - 1))] += draw(st.integers(1, 255))
    if draw(st.booleans()) and coding.to is None:
        bad = draw(st.sampled_from([-0.0, -1.0, float("inf"), float("nan")]))
        payload[places : places + 4].view(torch.float32)[0] = bad
    return payload, n, k, coding, exact


@given(
    case=coded(),
    isa=st.sampled_from(FORMS),
    weight=st.sampled_from([1.0, -1.0, 1 / 3, 1e30]),
    threads=st.integers(1, 3),
    offset=st.integers(0, 1),
)
def test_decoding(
    case: tuple[torch.Tensor, int, int, Coding, bool], isa: str, weight: float, threads: int, offset: int
) -> None:
    payload, n, k, coding, exact = case
    odd = shifted(payload, offset)
    check_decoder(
        isa,
        values("normal", n, 1),
        lambda out: reference.coded_decode_add(payload, k, coding, out, weight, exact),
        lambda out: native.coded_decode_add(odd, k, coding, out, weight, exact, threads),
    )


@pytest.mark.parametrize("coding", [Coding(INT8, 4), Coding(None, 4)])
def test_the_last_scale_is_checked(coding: Coding) -> None:
    """Nothing is added if any of them is bad."""
    x, k = values("normal", 5000, 1), 50
    payload = some_bytes(indices_of(5000, k).nbytes + coding.nbytes(k))
    reference.coded_encode(Feed(x), k, payload, coding)
    places, last = indices_of(5000, k).nbytes, blocks_of(k, 4) * (8 if coding.to is None else 4)
    payload[places + last - 4 : places + last].view(torch.float32)[0] = -1.0
    out = torch.zeros(5000)
    with pytest.raises(PayloadError, match="scale"):
        native.coded_decode_add(payload, k, coding, out, 1.0)
    assert not out.any()


def test_plain_torch_takes_the_parts_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the above compares two things."""
    from gradwire.compressors import kernels

    taken = []
    monkeypatch.setattr(Parts, "encode", lambda *_: taken.append(1) or 0)
    payload = some_bytes(indices_of(100, 5).nbytes + 10)
    kernels.coded_encode(Feed(torch.ones(100)), 5, payload, Coding(torch.float16))
    assert not taken
    with reference_only():
        kernels.coded_encode(Feed(torch.ones(100)), 5, payload, Coding(torch.float16))
    assert taken
