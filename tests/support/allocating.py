"""What tensors a piece of code makes."""

from __future__ import annotations

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Allocations"]


class Allocations(TorchDispatchMode):
    """Notes the bytes of every tensor that an operation of this thread makes; not those that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    @property
    def largest(self) -> int:
        return max(self.sizes, default=0)

    def count(self, nbytes: int) -> int:
        """How many are at least this large."""
        return sum(size >= nbytes for size in self.sizes)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in _pytree.tree_leaves((args, kwargs)) if _is(t)}
        for tensor in _pytree.tree_leaves(result):
            if _is(tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.sizes.append(tensor.untyped_storage().nbytes())
        return result


def _is(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)
