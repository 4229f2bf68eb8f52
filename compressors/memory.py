"""Error feedback: what a codec leaves out of one step is added to the next one."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch

from . import kernels
from .base import Compressed, Compressor, Context, State, settled
from .dense import NoCompression
from .errors import ConfigError, UsageError
from .options import check_fraction
from .randomk import RandomK
from .wrapper import Wrapper

__all__ = ["ErrorFeedback", "RESIDUAL"]

#: the state entry that holds what was left out so far (flat fp32)
RESIDUAL = "residual"


@dataclass(frozen=True)
class ErrorFeedback(Wrapper):
    """`p = x + decay * e`; sends C(p); the new residual is `e = p - D(C(p))` (1809.07599, 1901.09847).

    One residual goes around the whole chain: `ErrorFeedback(TopK(values=FP16()))` also feeds back what the cast
    lost. The old residual is left as it is, so that a caller who drops the new state has undone the step.

    Attributes:
        compressor: the codec to wrap.
        decay: share of the old residual that is added, in (0, 1].
    """

    _: KW_ONLY
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_fraction("decay", self.decay)
        _check_wrappable(self.compressor)

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def elementwise_state(self) -> frozenset[str]:
        return self.compressor.elementwise_state | {RESIDUAL}

    def _compress(
        self, vector: torch.Tensor, state: State, ctx: Context, payload: torch.Tensor, scratch: torch.Tensor | None
    ) -> Compressed:
        old = state.get(RESIDUAL)
        rest = torch.empty(vector.shape, device=vector.device) if scratch is None else scratch
        if old is not None and old.data_ptr() == rest.data_ptr():
            raise UsageError("scratch is the old residual; it must stay as it is until the step is applied")
        inner = {key: value for key, value in state.items() if key != RESIDUAL}
        after, finite = self._encode(kernels.Feed(vector, old, self.decay, rest), inner, ctx, payload)
        return settled(payload, state, {**after, RESIDUAL: rest}, finite)


def _check_wrappable(compressor: object) -> None:
    if not isinstance(compressor, Compressor):
        raise ConfigError(f"ErrorFeedback got {compressor!r}, expected a compressor such as TopK(ratio=0.01)")
    if RESIDUAL in compressor.elementwise_state:
        raise ConfigError(f"ErrorFeedback got {compressor!r}, which has a residual already; wrap the codec once")
    if isinstance(compressor, NoCompression):
        raise ConfigError("ErrorFeedback got NoCompression, which loses nothing; use it as it is")
    if isinstance(compressor, RandomK) and not compressor.error_feedback:
        raise ConfigError(
            "ErrorFeedback got RandomK(error_feedback=False), whose scaled values make the residual grow; "
            "use RandomK(error_feedback=True)"
        )
