"""Inputs for kernels, forms and threads to run them in, and how they are compared with the reference: bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from gradwire import PayloadError
from gradwire.compressors.kernels import Feed, native
from gradwire.compressors.kernels.native.library import ISAS
from hypothesis import strategies as st

needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())

_entries = native.entry._loaded.entries
#: so many elements are worth a thread in tests; else
_TESTED_GRAIN, _GRAIN = 1, 1 << 20

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: an encoder, given what it is fed with and what it writes to; a decoder, given what it adds to
Encode = Callable[[Feed, torch.Tensor], object]
Decode = Callable[[torch.Tensor], None]
#: rests of so many elements are written past the cache
LONG = (1 << 20) + 77
VALUES = ("normal", "heavy", "constant", "zeros", "few", "ties", "bits", "tiny", "huge")
SIZES = st.integers(1, 5000) | st.sampled_from([16_384, 65_534, 65_535, 65_536, 65_537, 131_071, 200_001])


@contextmanager
def running(isa: str, threads: bool = True) -> Iterator[None]:
    """In this block kernels run in one form, and in as many threads as they are told, for any number of elements."""
    before = _entries["isa"]()
    assert _entries["set_isa"](ISAS.index(isa))
    _entries["set_grain"](_TESTED_GRAIN if threads else _GRAIN)
    try:
        yield
    finally:
        _entries["set_isa"](before)
        _entries["set_grain"](_GRAIN)


def _forms() -> list[str]:
    """Those that this processor has."""
    if not native.available():
        return []
    best = _entries["isa"]()
    has = [isa for number, isa in enumerate(ISAS) if _entries["set_isa"](number)]
    _entries["set_isa"](best)
    return has


FORMS = _forms()


def values(kind: str, n: int, seed: int) -> torch.Tensor:
    """n numbers in fp32, all finite."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=random)
    if kind == "heavy":
        return x**3 * 10.0 ** torch.randint(-3, 4, (n,), generator=random)
    if kind == "constant":
        return x[:1].expand(n).clone()
    if kind == "zeros":
        return torch.zeros(n).copysign(x)
    if kind == "few":
        return torch.where(torch.rand(n, generator=random) < 0.01, x, torch.zeros(n).copysign(x))
    if kind == "ties":
        return x.mul(2).round() / 4
    if kind == "bits":
        bits = torch.randint(-(1 << 31), 1 << 31, (n,), generator=random).to(torch.int32).view(torch.float32)
        return torch.where(bits.isfinite(), bits, 1.0)
    return x * {"normal": 1.0, "tiny": 1e-41, "huge": 5e37}[kind]


def shifted(x: torch.Tensor, offset: int) -> torch.Tensor:
    """The same at an address that is so many elements beyond an aligned one."""
    return torch.cat([x.new_zeros(offset), x])[offset:]


@dataclass
class Fed:
    """What an encoder is fed with, and in which form and how many threads."""

    x: torch.Tensor
    residual: torch.Tensor | None
    decay: float
    rest: str
    offset: int
    isa: str
    threads: int

    @property
    def n(self) -> int:
        return self.x.numel()

    def feed(self) -> Feed:
        """With tensors of its own."""
        x = shifted(self.x, self.offset)
        rest = {"none": None, "own": shifted(torch.full((self.n,), 7.0), self.offset), "x": x}[self.rest]
        residual = None if self.residual is None else shifted(self.residual, 1 - self.offset)
        return Feed(x, residual, self.decay, rest)

    def payload(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), 0xA5, dtype=torch.uint8)


@st.composite
def fed(draw: st.DrawFn, sizes: st.SearchStrategy[int] = SIZES) -> Fed:
    """Now and then with a number that is not finite."""
    n, dtype, seed = draw(sizes), draw(st.sampled_from(DTYPES)), draw(st.integers(0, 1 << 20))
    most = 65504.0 if dtype is torch.float16 else 3.38e38
    x = values(draw(st.sampled_from(VALUES)), n, seed).clamp(-most, most)
    residual = values(draw(st.sampled_from(VALUES)), n, seed + 1) if draw(st.booleans()) else None
    spoilt = draw(st.sampled_from([None] * 8 + ["x", "residual"]))
    where = draw(st.integers(0, n - 1))
    broken = draw(st.sampled_from([float("nan"), float("inf"), -float("inf")]))
    if spoilt == "x":
        x[where] = broken
    elif spoilt and residual is not None:
        residual[where] = broken
    rests = ["none", "own", "x"] if dtype is torch.float32 else ["none", "own"]
    return Fed(
        x=x.to(dtype),
        residual=residual,
        decay=draw(st.sampled_from([1.0, 0.9])),
        rest=draw(st.sampled_from(rests)),
        offset=draw(st.integers(0, 1)),
        isa=draw(st.sampled_from(FORMS)),
        threads=draw(st.integers(1, 3)),
    )


def same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.view(words), b.view(words))


def some_bytes(n: int) -> torch.Tensor:
    return torch.full((n,), 77, dtype=torch.uint8)


def means_agree(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """But for the last place; of FLT_MIN and its neighbour the former is sent as 0."""
    low, high = torch.minimum(mine, theirs), torch.maximum(mine, theirs)
    near = high.view(torch.int32) - low.view(torch.int32) <= 1
    return bool((near | ((low == 0) & (high.view(torch.int32) == 0x00800001))).all())


def check_encoder(case: Fed, out: torch.Tensor, slow: Encode, fast: Encode) -> None:
    """Both encode to memory like `out`; result, what was written, and rest must agree; nothing else may change."""
    feeds, outs = (case.feed(), case.feed()), (out.clone(), out.clone())
    expected = slow(feeds[0], outs[0])
    with running(case.isa):
        result = fast(feeds[1], outs[1])
    assert result == expected
    if expected is not False and expected != -1:
        assert same_bits(outs[1], outs[0])
        assert same_bits(feeds[1].rest, feeds[0].rest)
    assert case.rest == "x" or same_bits(feeds[1].x, case.x)
    assert same_bits(feeds[1].residual, case.residual)


def check_decoder(isa: str, out: torch.Tensor, slow: Decode, fast: Decode) -> bool:
    """Both decode to memory like `out`, and agree; or both refuse, and leave it alone. Whether they accepted."""
    expected, result = out.clone(), shifted(out, 1)
    with running(isa):
        refusals = [_refusal(slow, expected), _refusal(fast, result)]
    assert refusals[0] == refusals[1]
    if refusals[0] is not None:
        assert same_bits(result, out)
    assert same_bits(result.nan_to_num(), expected.nan_to_num())
    return refusals[0] is None


def _refusal(decode: Decode, out: torch.Tensor) -> str | None:
    try:
        decode(out)
    except PayloadError as error:
        return str(error)
    return None
