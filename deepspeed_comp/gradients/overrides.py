"""Methods of live objects that are wrapped by attributes of the same names, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["Overrides"]

Method = Callable[..., Any]

_ABSENT = object()


class Overrides:
    """The classes stay as they are, and so does every other object of them."""

    def __init__(self) -> None:
        self._laid: list[tuple[Any, str, Method, Any]] = []

    def lay(self, owner: Any, name: str, around: Callable[[Method], Method]) -> None:
        """Let `owner.name` be `around(owner.name)`."""
        method = getattr(owner, name)
        wrapper = wraps(method)(around(method))
        self._laid.append((owner, name, wrapper, vars(owner).get(name, _ABSENT)))
        vars(owner)[name] = wrapper

    def lift(self) -> None:
        """Take all away. One that somebody has wrapped in turn stays, so it must pass calls on from now on."""
        while self._laid:
            owner, name, wrapper, before = self._laid.pop()
            if vars(owner).get(name) is not wrapper:
                continue
            if before is _ABSENT:
                del vars(owner)[name]
            else:
                vars(owner)[name] = before
