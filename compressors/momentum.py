"""Momentum correction: momentum is taken before the compression, so that what waits in a residual has it too."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch

from . import kernels
from .base import Compressed, Context, State, settled
from .memory import RESIDUAL, check_scratch, check_wrappable
from .options import check_fraction
from .wrapper import Wrapper

__all__ = ["MOMENTUM", "MomentumCorrection"]

#: the state entry that holds the momentum (flat fp32)
MOMENTUM = "momentum"


@dataclass(frozen=True)
class MomentumCorrection(Wrapper):
    """`u = m * u + x; v = v + u`; sends C(v), and takes D(C(v)) out of v (1712.01887).

    What a sparsifier has sent starts anew in u as well (factor masking): its momentum would be of an old direction.
    The optimizer must have no momentum of its own. This is the arithmetic; reducers refuse it: a rank alone would be
    without momentum, and so would tensors that travel dense.

    Attributes:
        compressor: the codec to wrap.
        momentum: m, in (0, 1].
    """

    _: KW_ONLY
    momentum: float = 0.9

    _scratch_rows = 2

    def __post_init__(self) -> None:
        check_fraction("momentum", self.momentum)
        check_wrappable("MomentumCorrection", self.compressor)

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def elementwise_state(self) -> frozenset[str]:
        return self.compressor.elementwise_state | {RESIDUAL, MOMENTUM}

    def _compress(
        self, vector: torch.Tensor, state: State, ctx: Context, payload: torch.Tensor, scratch: torch.Tensor | None
    ) -> Compressed:
        old = state.get(MOMENTUM)
        rest, momentum = _memory(vector, scratch)
        for fresh in (rest, momentum):
            check_scratch(fresh, state.get(RESIDUAL))
            check_scratch(fresh, old)
        kernels.total(kernels.Feed(vector, old, self.momentum, momentum))
        inner = {key: value for key, value in state.items() if key not in (RESIDUAL, MOMENTUM)}
        after, finite = self._encode(kernels.Feed(momentum, state.get(RESIDUAL), 1.0, rest), inner, ctx, payload)
        if finite is not False:
            self._clear(payload, ctx, momentum)
        return settled(payload, state, {**after, RESIDUAL: rest, MOMENTUM: momentum}, finite)


def _memory(vector: torch.Tensor, scratch: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """For the new residual and the new momentum: what the caller gave, as far as it goes."""
    n = vector.numel()
    if scratch is not None and scratch.numel() == 2 * n:
        return scratch[:n], scratch[n:]
    fresh = torch.empty(n, device=vector.device)
    return (torch.empty_like(fresh) if scratch is None else scratch), fresh
