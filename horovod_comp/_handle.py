"""A handle of one of Horovod's collectives, for Horovod to wait for without keeping a core busy."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["SleepingHandle"]


class SleepingHandle:
    """The handle of a real collective, for Horovod to wait for and to clear.

    Horovod's own wait keeps a core busy and knows no time limit. Before it begins, Horovod looks the handle up in its
    map, and is made to sleep there: an error raised in that place reaches the user as it is.

    Args:
        handle: Horovod's number.
        sleep: returns once there is nothing left to wait for, or raises.
    """

    def __init__(self, handle: int, sleep: Callable[[], None]) -> None:
        self._handle = handle
        self._sleep = sleep
        self._slept = False

    def __index__(self) -> int:
        return self._handle

    # Horovod finds its own entry by the handle, in a map with numbers as keys.

    def __hash__(self) -> int:
        return hash(self._handle)

    def __eq__(self, other: object) -> bool:
        if not self._slept and sys._getframe(1).f_code.co_name == "synchronize":
            self._sleep()
            self._slept = True  # from now on Horovod may clear the collective
        return self._handle == other
