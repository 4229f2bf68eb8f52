"""DeepSpeed's live communication object: inside a scope its sums of gradients are ours, all else is its own.

DeepSpeed reduces gradients in three ways, each of which ends in one method of that object. A *scope* is open in the
thread that is inside one of the functions of DeepSpeed that average gradients and do nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from .overrides import Method, Overrides

__all__ = ["SHADOWED", "Sums", "scope", "shadow", "unshadow"]

SHADOWED = ("all_reduce", "reduce", "reduce_scatter_tensor")


class Sums(Protocol):
    """What a scope does instead of the communication object; the arguments are those that DeepSpeed passes."""

    def all_reduce(self, tensor: torch.Tensor, op: Any, group: Any, async_op: bool) -> None: ...

    def reduce(self, tensor: torch.Tensor, dst: int, op: Any, group: Any, async_op: bool) -> None: ...

    def reduce_scatter_tensor(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, op: Any, group: Any, async_op: bool
    ) -> None: ...


_open: ContextVar[Sums | None] = ContextVar("gradwire_sums", default=None)
#: by communication object: what lies over its methods, and how many use that
_shadows: dict[Any, tuple[Overrides, int]] = {}


@contextmanager
def scope(sums: Sums) -> Iterator[None]:
    """In this block, sums that this thread asks for are done by `sums`. Scopes nest; the inner one counts."""
    token = _open.set(sums)
    try:
        yield
    finally:
        _open.reset(token)


def shadow(communication: Any) -> None:
    """Let scopes work on a communication object, for one more user."""
    overrides, users = _shadows.get(communication, (Overrides(), 0))
    if not users:
        for name in SHADOWED:
            overrides.lay(communication, name, _shadowing(name))
    _shadows[communication] = overrides, users + 1


def unshadow(communication: Any) -> None:
    """The opposite of `shadow`; after the last user the object is as it was."""
    overrides, users = _shadows.pop(communication)
    if users > 1:
        _shadows[communication] = overrides, users - 1
    else:
        overrides.lift()


def _shadowing(name: str) -> Callable[[Method], Method]:
    def around(method: Method) -> Method:
        def shadow(*args: Any, **kwargs: Any) -> Any:
            sums = _open.get()
            return method(*args, **kwargs) if sums is None else getattr(sums, name)(*args, **kwargs)

        return shadow

    return around
