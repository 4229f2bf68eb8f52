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

__all__ = ["ErrorFeedback", "RESIDUAL", "check_scratch", "check_wrappable"]

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
        check_wrappable("ErrorFeedback", self.compressor)
        if isinstance(self.compressor, NoCompression):
            raise ConfigError("ErrorFeedback got NoCompression, which loses nothing; use it as it is")

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
        check_scratch(rest, old)
        inner = {key: value for key, value in state.items() if key != RESIDUAL}
        after, finite = self._encode(kernels.Feed(vector, old, self.decay, rest), inner, ctx, payload)
        return settled(payload, state, {**after, RESIDUAL: rest}, finite)


def check_wrappable(memory: str, compressor: object) -> None:
    """What no memory takes."""
    if not isinstance(compressor, Compressor):
        raise ConfigError(f"{memory} got {compressor!r}, expected a compressor such as TopK(ratio=0.01)")
    if RESIDUAL in compressor.elementwise_state:
        raise ConfigError(f"{memory} got {compressor!r}, which has a residual already; wrap the codec once")
    if isinstance(compressor, RandomK) and not compressor.error_feedback:
        raise ConfigError(
            f"{memory} got RandomK(error_feedback=False), whose scaled values make the residual grow; "
            "use RandomK(error_feedback=True)"
        )


def check_scratch(scratch: torch.Tensor, old: torch.Tensor | None) -> None:
    """Refuse memory that an entry of the old state has, as long: it must stay as it is until the step is applied."""
    if old is not None and abs(scratch.data_ptr() - old.data_ptr()) < 4 * scratch.numel():
        raise UsageError("scratch shares memory with the old residual or momentum, which must stay as it is")
