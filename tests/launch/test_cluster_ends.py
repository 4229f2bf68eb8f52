"""However `gradwire cluster` ends, nothing of it is left: no process, no interface, and at the next start no folder."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support.clusters import COMMAND, children, need_namespaces, run_cluster

LIMIT = 60.0
ENV = "/usr/bin/env"
#: a child, a session of its own, one in another host, and the one that is waited for
SCRIPT = "sleep 1000 & setsid sleep 1000 & ssh host2 'sleep 1000' & touch {hostfile}.started; exec sleep 1000"


class Cluster:
    """A running one, in a session of its own."""

    def __init__(self, folder: Path, script: str = SCRIPT, sleeping: int = 4) -> None:
        need_namespaces()
        self.folder = folder
        self.links = socket.if_nameindex()
        self.process = subprocess.Popen(
            [ENV, "--default-signal=HUP", *COMMAND, "--", "sh", "-c", script],
            env=os.environ | {"TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.wait(lambda: bool(list(folder.glob("*/hostfile.started"))) and len(self.sleeping()) >= sleeping)
        self.inside = children(self.process.pid)

    def sleeping(self) -> list[int]:
        return [process for process in children(self.process.pid) if command_line(process).startswith("sleep")]

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, "no end in sight"
            time.sleep(0.05)

    def ended(self) -> tuple[int, str]:
        """Its status and what it said; everything inside has ended as well."""
        _, said = self.process.communicate(timeout=LIMIT)
        self.wait(
            lambda: not any(Path(f"/proc/{process}/ns").exists() and is_alive(process) for process in self.inside)
        )
        assert socket.if_nameindex() == self.links
        return self.process.returncode, said


def command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "folder"
    path.mkdir()
    yield path
    run_cluster("--", "true", variables={"TMPDIR": str(path)})
    assert list(path.iterdir()) == [], "the next start removes what is left"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_reaches_the_command_and_everything_ends(number: signal.Signals, folder: Path) -> None:
    cluster = Cluster(folder)
    cluster.process.send_signal(number)
    assert cluster.ended() == (128 + number, "")
    assert list(folder.iterdir()) == []


def test_nohup_is_heeded(folder: Path) -> None:
    command = [ENV, "--ignore-signal=HUP", *COMMAND, "--", "sh", "-c", "echo {host_index}; sleep 0.2"]
    need_namespaces()
    script = f"{shlex.join(command)} & sleep 0.1; while kill -HUP $! 2>/dev/null; do sleep 0.1; done; wait $!"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n")


def test_the_command_s_own_answer_to_a_signal_counts(folder: Path) -> None:
    cluster = Cluster(folder, "trap 'exit 9' INT; touch {hostfile}.started; while :; do sleep 0.05; done", 0)
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.ended()[0] == 9


def test_the_second_signal_does_not_wait(folder: Path) -> None:
    cluster = Cluster(folder, "trap '' INT TERM; touch {hostfile}.started; while :; do sleep 0.05; done", 0)
    started = time.monotonic()
    cluster.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert cluster.process.poll() is None
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.ended()[0] == 130
    assert list(folder.iterdir()) == []
    assert time.monotonic() - started < LIMIT


def test_ctrl_c_in_a_terminal_reaches_all_of_them(folder: Path) -> None:
    cluster = Cluster(folder)
    os.killpg(cluster.process.pid, signal.SIGINT)
    assert cluster.ended() == (130, "")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("whole_group", [False, True], ids=["alone", "with its group"])
def test_kill_9_of_gradwire_ends_everything(whole_group: bool, folder: Path) -> None:
    cluster = Cluster(folder)
    (os.killpg if whole_group else os.kill)(cluster.process.pid, signal.SIGKILL)
    assert cluster.ended() == (-signal.SIGKILL, "")


@pytest.mark.parametrize("which", [0, 1], ids=["unshare", "process 1"])
def test_kill_9_of_what_holds_the_namespaces_is_an_error(which: int, folder: Path) -> None:
    cluster = Cluster(folder)
    os.kill(cluster.inside[which], signal.SIGKILL)
    status, said = cluster.ended()
    assert status == 1
    assert "gradwire: the emulated cluster ended with status" in said
    assert "before COMMAND did: was it killed?" in said
    assert list(folder.iterdir()) == []
