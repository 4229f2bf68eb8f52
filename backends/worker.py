"""A thread that takes a step on while backward still makes gradients; codecs and waiting leave Python's lock alone."""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import Protocol

from ..compressors.errors import ConfigError
from .transport import Transport

__all__ = ["Follower", "Worker", "check_overlap"]


class Follower(Protocol):
    """What the thread runs."""

    def follow(self) -> None:
        """Returns when there is nothing left to do; raises nothing."""

    def notify(self) -> None:
        """There is more to do. May be called while it follows, and by any thread."""

    def stop(self) -> None:
        """There is nothing more to do. As `notify`."""


class Worker:
    """One thread; it starts with the first that it is given, and ends with its owner.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: SimpleQueue[Follower | None] = SimpleQueue()
        self._started = False
        #: the follower that was given last, as long as it lives
        self._latest: weakref.WeakSet[Follower] = weakref.WeakSet()

    def rouse(self, follower: Follower) -> None:
        """Run it; where it runs already, tell it that there is more to do."""
        if follower in self._latest:
            follower.notify()
            return
        self._latest.clear()
        self._latest.add(follower)
        self._start()
        self._inbox.put(follower)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            threading.Thread(target=_serve, args=(self._inbox,), name=self._name, daemon=True).start()
            weakref.finalize(self, _end, self._inbox, self._latest)


def check_overlap(overlap: object, transport: Transport) -> None:
    """Refuse what a second thread cannot serve.

    Raises:
        ConfigError: it is not True or False, or the transport is for one thread only.
    """
    if not isinstance(overlap, bool):
        raise ConfigError(f"overlap is {overlap!r}; it must be True or False")
    if overlap and not transport.any_thread:
        raise ConfigError(
            f"overlap=True starts collectives in another thread, and {transport.kind} was initialised for one "
            "only: initialise it with MPI_THREAD_MULTIPLE, or leave overlap out"
        )


def _end(inbox: SimpleQueue[Follower | None], latest: weakref.WeakSet[Follower]) -> None:
    for follower in latest:
        follower.stop()
    inbox.put(None)


def _serve(inbox: SimpleQueue[Follower | None]) -> None:
    while (follower := inbox.get()) is not None:
        follower.follow()
        del follower  # it holds gradients
