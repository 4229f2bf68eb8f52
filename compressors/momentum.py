"""Momentum correction: momentum is taken before the compression, so that what waits in a residual has it too."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch

from . import kernels
from .base import Compressed, Context, State, settled
from .errors import ConfigError
from .memory import RESIDUAL
from .options import check_fraction
from .wrapper import Wrapper

__all__ = ["MOMENTUM", "MomentumCorrection"]

#: the state entry that holds the momentum (flat fp32)
MOMENTUM = "momentum"
#: storage for the next momentum, whatever it holds: the last one stays as it is until the step is applied
_SPARE = "spare"


@dataclass(frozen=True)
class MomentumCorrection(Wrapper):
    """`u = m * u + x; v = v + u`; sends C(v), and takes D(C(v)) out of v (1712.01887).

    What a sparsifier has sent starts anew in u as well (factor masking): its momentum would be of an old direction.
    The optimizer must have no momentum of its own. This is the arithmetic; reducers do not know of it yet.

    Attributes:
        compressor: the codec to wrap.
        momentum: m, in (0, 1].
    """

    _: KW_ONLY
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_fraction("momentum", self.momentum)
        if RESIDUAL in self.compressor.elementwise_state:
            raise ConfigError(
                f"MomentumCorrection got {self.compressor!r}, which has a residual already; wrap the codec"
            )

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def elementwise_state(self) -> frozenset[str]:
        return self.compressor.elementwise_state | {RESIDUAL, MOMENTUM}

    def _compress(
        self, vector: torch.Tensor, state: State, ctx: Context, payload: torch.Tensor, scratch: torch.Tensor | None
    ) -> Compressed:
        old, spare = state.get(MOMENTUM), state.get(_SPARE)
        momentum = torch.empty(vector.shape, device=vector.device) if spare is None else spare
        kernels.total(kernels.Feed(vector, old, self.momentum, momentum))
        rest = torch.empty_like(momentum) if scratch is None else scratch
        inner = {key: value for key, value in state.items() if key not in (RESIDUAL, MOMENTUM, _SPARE)}
        after, finite = self._encode(kernels.Feed(momentum, state.get(RESIDUAL), 1.0, rest), inner, ctx, payload)
        if finite is not False:
            self._clear(payload, ctx, momentum)
        after = {**after, RESIDUAL: rest, MOMENTUM: momentum} | ({} if old is None else {_SPARE: old})
        return settled(payload, state, after, finite)
