"""What happens to DeepSpeed's sums of gradients inside a scope."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from ...backends import BucketReducer
from ...compressors.errors import UnsupportedError
from .averaging import Carried

__all__ = ["GradientSums"]


class GradientSums:
    """The sums of one call of a function that averages gradients; they arrive where DeepSpeed expects them.

    Args:
        reducer: takes the means.
        ranks: of the reducer, as torch.distributed counts them.
        carried: what is averaged.
    """

    def __init__(self, reducer: BucketReducer, ranks: list[int], carried: Carried) -> None:
        self._reducer = reducer
        self._ranks = ranks
        self._carried = carried
        self._world_size = len(ranks)

    def all_reduce(self, tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> None:
        self._check(tensor, op, group, async_op)
        self._reducer.all_reduce(tensor.view(-1), self._carried.parts, scale=self._world_size)

    def reduce(self, tensor: torch.Tensor, dst: int, op: Any = None, group: Any = None, async_op: bool = False) -> None:
        """To one owner. DeepSpeed does not look at what the others have afterwards."""
        self._check(tensor, op, group, async_op)
        runs = [tensor.numel() if rank == dst else 0 for rank in self._ranks]
        flat = tensor.view(-1)
        out = flat if self._ranks[self._reducer.transport.rank] == dst else flat[:0]
        self._scatter(flat, tuple(accumulate(runs, initial=0)), out)

    def reduce_scatter_tensor(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        op: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> None:
        self._check(input_tensor, op, group, async_op, scattered=True)
        self._scatter(input_tensor.view(-1), self._carried.bounds or (), output_tensor.view(-1))

    def _scatter(self, flat: torch.Tensor, bounds: tuple[int, ...], out: torch.Tensor) -> None:
        self._reducer.reduce_scatter(flat, self._carried.parts, bounds, out, scale=self._world_size)

    def _check(self, tensor: torch.Tensor, op: Any, group: Any, async_op: bool, *, scattered: bool = False) -> None:
        """Refuse what is no sum of these gradients: nothing travels uncompressed by mistake."""
        ranks = dist.get_process_group_ranks(group)
        if ranks != self._ranks:
            raise UnsupportedError(
                f"DeepSpeed averages gradients over the ranks {ranks}, compression was attached for {self._ranks}"
            )
        if tensor.numel() != self._carried.numel or scattered != (self._carried.bounds is not None):
            raise UnsupportedError(
                f"DeepSpeed sums {tensor.numel()} elements where it was to average {self._carried.numel}: gradwire "
                "does not know which gradients these are"
            )
        if async_op or getattr(op, "name", "SUM") != "SUM":
            raise UnsupportedError(f"DeepSpeed averages gradients with op={op} and async_op={async_op}, expected a sum")
