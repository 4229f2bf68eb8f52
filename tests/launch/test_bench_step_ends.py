"""`gradwire bench step` ends in order: no ranks go on without it."""

from __future__ import annotations

import signal

import pytest
from gradwire.launch.bench_step import command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_take_the_ranks_along(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as stopped, command.ending_in_order():
            signal.raise_signal(number)
        assert stopped.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_who_ignores_hangups_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with command.ending_in_order():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
