"""The outer half of `gradwire cluster`: start process 1, hand signals on to it, hear what it says."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ...compressors.errors import GradwireError, UnsupportedError

__all__ = ["ClusterError", "supervise"]

GRACE_SECONDS = 10.0


class ClusterError(GradwireError):
    """The emulated cluster ended without a word."""


def supervise(command: Sequence[str]) -> int:
    """Run process 1, hand signals on to it, and return the status that it reports.

    The channel is its lifeline: when this process ends, be it by SIGKILL, the channel closes, and process 1 ends.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, handing_on(ours) as signals:
        with theirs:
            descriptor = theirs.fileno()
            process = subprocess.Popen([*command, str(descriptor)], pass_fds=[descriptor])
        try:
            answer = signals.answer()
        finally:
            ours.close()
            status = process.wait()
    if "status" in answer:
        return answer["status"]
    if signals.number:
        return 128 + signals.number
    if "refusal" in answer:
        raise UnsupportedError(answer["refusal"])
    raise ClusterError(f"the emulated cluster ended with status {status} before COMMAND did: was it killed?")


class Signals:
    """The first signal goes on to COMMAND, which then has some seconds left; the second one ends it."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.number = 0
        self.deadline = float("inf")

    def __call__(self, number: int, frame: object) -> None:
        if self.number:
            self.deadline = 0.0
            return
        self.number, self.deadline = number, time.monotonic() + GRACE_SECONDS
        if number != signal.SIGINT or not in_foreground():  # a terminal has told all of them
            with suppress(OSError):
                self.channel.send(bytes([number]))

    def answer(self) -> dict[str, Any]:
        """What process 1 says at its end; nothing if it was too late."""
        while time.monotonic() < self.deadline:
            if select.select([self.channel], [], [], 0.2)[0]:
                with suppress(ConnectionError):
                    return json.loads(self.channel.recv(65536) or b"{}")
                return {}
        return {}


@contextmanager
def handing_on(channel: socket.socket) -> Iterator[Signals]:
    signals = Signals(channel)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, signals) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def in_foreground() -> bool:
    """Whether what is typed on a terminal reaches this process, and so COMMAND, which is in the same group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
