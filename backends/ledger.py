"""What a rank keeps by tensor name, with a way back to the last commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .runs import Run

__all__ = ["Ledger"]


class Ledger:
    """Runs by name. What is put counts at once; `commit` keeps it, `rollback` undoes it."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        #: what has changed since the last commit, as it was then
        self._old: dict[str, Run | None] = {}

    def get(self, name: str) -> Run | None:
        """What is kept for a tensor, if anything."""
        return self._runs.get(name)

    def put(self, name: str, run: Run) -> None:
        """Replace what is kept for a tensor. The old run's tensors stay as they are."""
        self._old.setdefault(name, self._runs.get(name))
        self._runs[name] = run

    def commit(self) -> None:
        """Let go of what `rollback` would have led to."""
        self._old.clear()

    def rollback(self) -> None:
        """Go back to the last commit."""
        self.load(self.committed())

    @property
    def current(self) -> list[Run]:
        """All runs, committed or not."""
        return list(self._runs.values())

    def committed(self) -> dict[str, Run]:
        """The runs of the last commit."""
        return {name: run for name, run in (self._runs | self._old).items() if run is not None}

    def load(self, runs: Mapping[str, Run]) -> None:
        """Replace everything, as if just committed."""
        self._runs, self._old = dict(runs), {}

    def update(self, change: Callable[[Run], Run]) -> None:
        """Change every run, and those that `rollback` leads to."""
        self._runs = {name: change(run) for name, run in self._runs.items()}
        self._old = {name: None if run is None else change(run) for name, run in self._old.items()}
