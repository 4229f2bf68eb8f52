"""What encoders are fed with."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Feed", "Verdict"]

#: whether something is finite; kernels on a GPU answer with a 0-dim tensor, for which nobody has to wait
Verdict = bool | torch.Tensor


class Feed(NamedTuple):
    """What is encoded: `x + decay * residual`, in fp32; and where what the payload leaves out of it goes.

    Attributes:
        x: contiguous, 1-D, not empty; fp16, bf16, fp32 or fp64.
        residual: flat, or None for zeros. Never changed.
        decay: share of the residual that counts.
        rest: flat, or None: not wanted. It may be `x` itself, never `residual`. Where the sum is not finite it may
            hold anything afterwards.
    """

    x: torch.Tensor
    residual: torch.Tensor | None = None
    decay: float = 1.0
    rest: torch.Tensor | None = None
