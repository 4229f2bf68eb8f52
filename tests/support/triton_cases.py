"""Inputs for kernels in Triton, on a GPU or under its interpreter. Without either, who imports this is skipped.

The interpreter runs where TRITON_INTERPRET is 1, and is slow: sizes are small. Then doing without Triton is an error.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from gradwire.compressors.kernels import Feed
from hypothesis import settings
from hypothesis import strategies as st
from support.native_cases import DTYPES, VALUES, means_agree, same_bits, some_bytes, values

if importlib.util.find_spec("triton") is None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise ImportError("TRITON_INTERPRET=1, but triton is not installed")
    pytest.skip("triton is not installed", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    pytest.skip("there is no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)

from gradwire.compressors.kernels import triton as kernels

__all__ = [
    "DEVICE",
    "INF",
    "NAN",
    "SIZES",
    "Case",
    "Guarded",
    "cases",
    "fed",
    "few",
    "kernels",
    "means_agree",
    "same",
    "some_bytes",
    "there",
    "unchanged",
    "values",
]

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")

#: a program has 4096 elements, or somewhat fewer
SIZES = (1, 7, 8, 255, 256, 1000, 5000, 9001)
NAN, INF = float("nan"), float("inf")
#: a few examples each: a kernel takes some milliseconds
few = settings(max_examples=8)


@dataclass
class Case:
    """What an encoder is fed with; tensors are on the CPU, where the reference runs."""

    x: torch.Tensor
    residual: torch.Tensor | None = None
    decay: float = 1.0
    rest: str = "none"

    @property
    def n(self) -> int:
        return self.x.numel()

    def feed(self, device: torch.device | None = None) -> Feed:
        """With tensors of its own."""
        x = self.x.clone().to(device)
        residual = None if self.residual is None else self.residual.clone().to(device)
        rest = {"none": None, "own": torch.full((self.n,), 7.0, device=device), "x": x}[self.rest]
        return Feed(x, residual, self.decay, rest)


def cases(n: int) -> Iterator[Case]:
    """Each dtype, with and without residual, decay and rest."""
    x, residual = values("normal", n, n), values("normal", n, n + 1)
    x[n // 2] = 0.0
    yield Case(x, residual, 0.9, "x")
    yield Case(x, None, 1.0, "x")
    yield Case(x.half(), residual, 1.0, "own")
    yield Case(x.bfloat16(), None, 1.0, "own")
    yield Case(x, residual, 0.9, "none")


@st.composite
def fed(draw: st.DrawFn) -> Case:
    """Numbers of all kinds; now and then one that is not finite."""
    n, dtype, seed = draw(st.integers(1, 5000)), draw(st.sampled_from(DTYPES)), draw(st.integers(0, 1 << 20))
    most = 65504.0 if dtype is torch.float16 else 3.38e38
    x = values(draw(st.sampled_from(VALUES)), n, seed).clamp(-most, most)
    residual = values(draw(st.sampled_from(VALUES)), n, seed + 1) if draw(st.booleans()) else None
    if draw(st.integers(0, 5)) == 0:
        spoilt = x if residual is None or draw(st.booleans()) else residual
        spoilt[draw(st.integers(0, n - 1))] = draw(st.sampled_from([NAN, INF, -INF]))
    rest = draw(st.sampled_from(["none", "own", "x"] if dtype is torch.float32 else ["none", "own"]))
    return Case(x.to(dtype), residual, draw(st.sampled_from([1.0, 0.9])), rest)


def there(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the device: with memory of its own, even if the device is the CPU."""
    return tensor.clone().to(DEVICE)


def same(mine: torch.Tensor | None, theirs: torch.Tensor | None) -> bool:
    """Bit for bit, wherever they are."""
    return same_bits(None if mine is None else mine.cpu(), theirs)


def unchanged(feed: Feed, case: Case) -> bool:
    """What an encoder may not change."""
    return same(feed.residual, case.residual) and (case.rest == "x" or same(feed.x, case.x))


class Guarded:
    """A tensor on the device with room around it, which must stay as it is."""

    def __init__(self, of: torch.Tensor) -> None:
        self._room = torch.full((of.numel() + 64,), 3.0, device=DEVICE)
        self.inner = self._room[32:-32]
        self.inner.copy_(of)

    def intact(self) -> bool:
        return bool((self._room[:32] == 3).all() and (self._room[-32:] == 3).all())
