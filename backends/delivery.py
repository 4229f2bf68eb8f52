"""Whose storage serves for what, so that a step needs no memory beyond one residual per tensor.

With error feedback the gradient's own storage (where the host gives it away) becomes the new residual, and the old
residual's storage receives the decoded mean: the two swap roles in every step.
"""

from __future__ import annotations

import torch

from ..compressors import State
from ..compressors.memory import RESIDUAL
from .exchange import Source

__all__ = ["deliver", "is_exclusive", "output_for", "scratch_for"]


def scratch_for(grad: torch.Tensor, *, donated: bool) -> torch.Tensor:
    """Flat storage for a new residual."""
    return grad.detach().view(-1) if donated and _is_spare(grad) else torch.empty(grad.numel(), device=grad.device)


def output_for(source: Source, kept: State, out: torch.Tensor | None = None) -> torch.Tensor:
    """Flat storage for a decoded mean: that of `out`, if it will do; `kept` is the state after the step."""
    if out is not None and out.dtype == torch.float32 and out.is_contiguous():
        return out.view(-1)
    old = source.state.get(RESIDUAL)
    if old is not None and old is not kept.get(RESIDUAL) and old.numel() == source.grad.numel():
        return old
    if source.scratch is None and source.donated and _is_spare(source.grad):
        return source.grad.detach().view(-1)
    return torch.empty(source.grad.numel(), device=source.grad.device)


def deliver(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A flat mean as a tensor of `like`'s shape, dtype and strides; without a copy where that is possible."""
    if flat.dtype == like.dtype and like.is_contiguous():
        return flat.view(like.shape)
    return torch.empty_like(like).copy_(flat.view(like.shape))


def is_exclusive(grad: torch.Tensor) -> bool:
    """Whether nothing but the gradient looks at its storage.

    A gradient may share it with another parameter's, or with one that backward has yet to use: autograd hands on
    views, as for `(x @ w) + position[None]`. The last gradient of a bucket still belongs to backward and is not
    exclusive either.
    """
    return _owners(grad) <= _OWNERS_OF_ONE


def _is_spare(grad: torch.Tensor) -> bool:
    """Whether a given-away gradient is flat, fills its storage, and no other tensor looks at that."""
    flat = grad.dtype == torch.float32 and grad.is_contiguous() and grad.untyped_storage().nbytes() == grad.nbytes
    return flat and is_exclusive(grad)


def _owners(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


#: the tensor, and the handle that the question itself takes
_OWNERS_OF_ONE = _owners(torch.empty(1))
