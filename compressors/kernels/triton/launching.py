"""How kernels are started: on the tensors' device, on torch's current stream, in grids that follow from shapes."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["TILE", "finite_flag", "launch", "launch_over"]

#: elements that a program holds at a time
TILE = 4096

_WARPS = 8


def launch(kernel: Any, programs: int, first: torch.Tensor, *args: object, **constants: object) -> None:
    """Start a kernel; nothing waits for it.

    Args:
        kernel: made by `triton.jit`.
        programs: how many.
        first: its first argument, whose device is the one that it runs on.
        args: its other arguments.
        constants: those that it is compiled for.
    """
    with torch.cuda.device_of(first):
        # products are rounded before they are added: a fused multiply-add gives other bits than the reference
        kernel[(programs,)](first, *args, **constants, num_warps=_WARPS, enable_fp_fusion=False)


def launch_over(numel: int, kernel: Any, first: torch.Tensor, *args: object, **constants: object) -> None:
    """The same with a program per `TILE` elements."""
    launch(kernel, -(-numel // TILE), first, *args, **constants, TILE=TILE)


def finite_flag(like: torch.Tensor) -> torch.Tensor:
    """True, 0-dim, on the device of `like`; kernels make it False."""
    return torch.ones((), dtype=torch.bool, device=like.device)
