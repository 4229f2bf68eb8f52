"""Every call on a flat bucket begins with a comparison of what the ranks are about to do.

A rank cannot know whether a bucket that it has met before is new to another one, or whether another one makes this
call at all. So each call compares, known bucket or not, and no rank enters a collective that another one is not in.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import torch

from ..compressors.errors import TransportError, UsageError
from .fingerprint import compare, digest_of
from .flat_plan import FlatPlan, Request
from .flat_plans import FlatPlans
from .transport import Transport

__all__ = ["Agreed", "CallAgreement", "Turn"]

#: dtypes of flat buckets
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: bytes of a digest that travel in every call; two different calls look alike once in 2^64
DIGEST_BYTES = 8


class Turn(NamedTuple):
    """When a call comes, and what its mean is multiplied with; equal on all ranks.

    Attributes:
        step: committed steps.
        call: calls that moved residuals.
        scale: the factor.
    """

    step: int
    call: int
    scale: float

    def digest(self, plan: bytes) -> bytes:
        """Of a call that follows a plan."""
        return hashlib.sha256(plan + struct.pack("<qqd", *self)).digest()[:DIGEST_BYTES]

    def lines(self) -> list[str]:
        return [f"step {self.step}, call {self.call}", f"scale {self.scale}"]


class Agreed(NamedTuple):
    """What all ranks do now, and how many seconds it took until that was known."""

    plan: FlatPlan
    seconds: float


class CallAgreement:
    """Finds the plan of every call, and compares it over the ranks. One rank alone sends nothing.

    Args:
        plans: finds and keeps plans.
        transport: the ranks.
        prefix: of the collectives' names.
        facts: lines that must be equal on all ranks.
        timeout: seconds that a collective may take.
    """

    def __init__(
        self, plans: FlatPlans, transport: Transport, *, prefix: str, facts: Sequence[str], timeout: float
    ) -> None:
        self._plans = plans
        self._transport = transport
        self._name = f"{prefix}.fingerprint"
        self._facts = list(facts)
        self._timeout = timeout

    @property
    def sent_bytes(self) -> int:
        """What this rank sends in every call."""
        return DIGEST_BYTES * (self._transport.world_size - 1)

    def agree(self, request: Request, turn: Turn, flat: torch.Tensor, out: torch.Tensor) -> Agreed:
        """The plan for a call that all ranks are about to make; a collective operation.

        Args:
            request: what this rank asks for.
            turn: when.
            flat: the bucket.
            out: where this rank's run of the mean goes.

        Raises:
            UsageError: the request or the tensors do not fit, in the same way on all ranks.
            MismatchError: ranks are about to do different things, or only some of them refuse to; raised on every
                rank, with the first difference. No plan was made.
            TransportError: not all ranks make a call; the text says which call this rank was about to make.
        """
        try:
            _check_vector("flat", flat, request.numel)
            plan = self._plans.find(request)
            _check_vector("out", out, plan.given[1] - plan.given[0])
        except Exception as error:
            self._refuse(request, turn, f"refused: {error}")
            raise
        begun = perf_counter()
        self._compare(plan.digest, request, turn)
        self._plans.keep(plan)
        return Agreed(plan, perf_counter() - begun)

    def _refuse(self, request: Request, turn: Turn, reason: str) -> None:
        """Let the other ranks know, which may be waiting."""
        self._compare(digest_of([*self._facts, *request.lines(), reason]), request, turn, reason)

    def _compare(self, plan: bytes, request: Request, turn: Turn, *reason: str) -> None:
        if self._transport.world_size == 1:
            return
        try:
            compare(
                turn.digest(plan),
                lambda: [*self._facts, *turn.lines(), *request.lines(), *reason],
                self._transport,
                self._name,
                self._timeout,
            )
        except TransportError as error:
            raise type(error)(f"{error}. {_doing(request, turn)}") from error


def _doing(request: Request, turn: Turn) -> str:
    """What a rank was about to do when nobody joined in."""
    return (
        f"In step {turn.step} this rank was about to average a bucket («{request.head()}»), and not all ranks were: "
        "every rank must make the same calls in every step, in the same order"
    )


def _check_vector(what: str, tensor: torch.Tensor, numel: int) -> None:
    if tensor.dtype not in DTYPES or tensor.shape != (numel,) or not tensor.is_contiguous():
        raise UsageError(
            f"{what} is {tensor.dtype} {tuple(tensor.shape)}, expected a contiguous vector of {numel} elements: "
            "float32, float16 or bfloat16"
        )
