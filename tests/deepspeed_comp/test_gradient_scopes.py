"""What is wrapped, for whom, and how it goes away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from gradwire.deepspeed_comp.gradients.collectives import SHADOWED, scope, shadow, unshadow
from gradwire.deepspeed_comp.gradients.overrides import Overrides


class Engine:
    def double(self, x: int) -> int:
        return 2 * x


def plus(number: int) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return lambda method: lambda *args, **kwargs: method(*args, **kwargs) + number


def test_overrides_are_on_one_object_only_and_go_away() -> None:
    engine, other, overrides = Engine(), Engine(), Overrides()
    overrides.lay(engine, "double", plus(1))
    overrides.lay(engine, "double", plus(10))
    assert (engine.double(x=4), other.double(4), engine.double.__name__) == (19, 8, "double")
    overrides.lift()
    assert vars(engine) == {}


def test_an_attribute_that_was_there_before_comes_back() -> None:
    engine, overrides = Engine(), Overrides()
    own = engine.double = lambda x: x  # pyright: ignore[reportAttributeAccessIssue]
    overrides.lay(engine, "double", plus(1))
    assert engine.double(4) == 5
    overrides.lift()
    assert engine.double is own


def test_what_somebody_has_wrapped_in_turn_stays() -> None:
    engine, overrides = Engine(), Overrides()
    overrides.lay(engine, "double", plus(1))
    wrapped = engine.double
    theirs = engine.double = lambda x: wrapped(x) * 100  # pyright: ignore[reportAttributeAccessIssue]
    overrides.lift()
    assert engine.double is theirs
    assert engine.double(4) == 900


class Communication:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def all_reduce(self, *args: Any, **kwargs: Any) -> Any:
        return self._note("all_reduce", args, kwargs)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        return self._note("reduce", args, kwargs)

    def reduce_scatter_tensor(self, *args: Any, **kwargs: Any) -> Any:
        return self._note("reduce_scatter_tensor", args, kwargs)

    def _note(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        self.calls.append((name, args, kwargs))
        return name


@pytest.mark.parametrize("name", SHADOWED)
def test_a_scope_takes_over_in_its_own_thread_only(name: str) -> None:
    communication, sums = Communication(), Communication()
    shadow(communication)
    results: list[object] = []

    def ask() -> None:
        results.append(getattr(communication, name)(1, group=2))

    ask()
    with scope(sums):
        ask()
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    ask()
    assert results == [name] * 4
    assert communication.calls == [(name, (1,), {"group": 2})] * 3
    assert sums.calls == [(name, (1,), {"group": 2})]
    unshadow(communication)


def test_scopes_nest() -> None:
    communication, outer, inner = Communication(), Communication(), Communication()
    shadow(communication)
    with scope(outer):
        with scope(inner):
            communication.all_reduce(1)
        communication.all_reduce(2)
    communication.all_reduce(3)
    assert [one.calls for one in (inner, outer, communication)] == [[("all_reduce", (n,), {})] for n in (1, 2, 3)]
    unshadow(communication)


def test_a_scope_ends_with_an_error() -> None:
    communication, sums = Communication(), Communication()
    shadow(communication)
    with pytest.raises(ZeroDivisionError), scope(sums):
        _ = 1 / 0
    communication.all_reduce(1)
    assert (len(sums.calls), len(communication.calls)) == (0, 1)
    unshadow(communication)


def test_the_last_user_takes_the_shadows_away() -> None:
    communication = Communication()
    for _ in range(2):
        shadow(communication)
    unshadow(communication)
    assert set(SHADOWED) <= set(vars(communication))
    unshadow(communication)
    assert set(vars(communication)) == {"calls"}
