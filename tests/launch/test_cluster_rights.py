"""What `gradwire cluster` needs of the machine, what it says without it, and whose folders it removes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from gradwire.compressors.errors import UnsupportedError
from gradwire.launch import cli
from gradwire.launch.cluster import folder, inside, rights
from gradwire.launch.cluster.folder import own_folder, remove_stale


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def _folders_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folders").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "folders"))


def left() -> list[Path]:
    return sorted(Path(tempfile.gettempdir()).iterdir())


@pytest.mark.parametrize("program", ["no-such-program", "/etc/passwd", "/no/such/program"])
def test_a_command_that_is_none(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", "--", program, "x"]) == 1
    assert f"COMMAND is {program!r}, which is no program on PATH: write its path" in capsys.readouterr().err
    assert left() == []


def test_missing_programs_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(tmp_path / "unshare", "exit 1")
    script(tmp_path / "command", "exit 0")
    monkeypatch.setattr(rights, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["cluster", "--", "command"]) == 1
    assert capsys.readouterr().err == (
        "gradwire: gradwire cluster needs ip, tc, nsenter, mount, not found on PATH: "
        "sudo apt-get install iproute2 mount util-linux\n"
    )
    assert left() == []


def test_a_missing_right_is_refused_with_the_remedy(tmp_path: Path) -> None:
    unshare = script(tmp_path / "unshare", "echo unshare: not allowed >&2; exit 1")
    with pytest.raises(UnsupportedError) as error:
        rights.flags(unshare)
    assert "may not make namespaces here (unshare: not allowed): run it with sudo" in str(error.value)
    assert "sudo sysctl -e -w user.max_user_namespaces=10000" in str(error.value)
    assert "a container needs --privileged" in str(error.value)


@pytest.mark.parametrize(
    ("user", "allowed", "expected"),
    [
        (0, "any", []),
        (0, "user", [*rights.USER_FLAGS]),  # root of a container may lack the right, and yet have a user namespace's
        (1000, "any", [*rights.USER_FLAGS]),
    ],
)
def test_a_user_namespace_where_root_s_right_is_missing(
    user: int, allowed: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    unshare = script(tmp_path / "unshare", 'test "$1" = --user' if allowed == "user" else "true")
    assert rights.flags(unshare) == [*expected, *rights.FLAGS]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "5ms"],
            "--delay 5ms needs netem, which this kernel has not (Error: Specified qdisc kind is unknown.): "
            "load it with sudo modprobe sch_netem, or leave out --delay",
        ),
        (
            ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1gbit"],
            "--rate 1gbit needs tbf, which this kernel has not (Error: Specified qdisc kind is unknown.): "
            "load it with sudo modprobe sch_tbf, or give --rate unshaped",
        ),
        (
            ["tc", "link", "add", "name", "switch", "type", "bridge"],
            "gradwire cluster needs bridge, which this kernel has not (Error: Specified qdisc kind is unknown.): "
            "load it with sudo modprobe bridge, or use another machine",
        ),
        (["tc", "x"], "'tc x' failed: Error: Specified qdisc kind is unknown."),
    ],
)
def test_a_kernel_that_lacks_something(command: list[str], said: str, tmp_path: Path) -> None:
    tc = script(tmp_path / "tc", "echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2")
    with pytest.raises(inside.Refusal) as refusal:
        inside.make(command, {"tc": tc})
    assert str(refusal.value) == said


def test_a_host_that_cannot_be_made(tmp_path: Path) -> None:
    task = tmp_path / "task.json"
    unshare = script(tmp_path / "unshare", "echo no room >&2; exit 1")
    task.write_text(json.dumps({"tools": {"unshare": unshare}, "hosts": [{"name": "host1", "address": "x"}]}))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        command = [sys.executable, "-IS", inside.__file__, "run", str(task), str(theirs.fileno())]
        done = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60, check=True
        )
        answer = json.loads(ours.recv(65536))
    assert done.stderr == "no room\n"
    assert answer["refusal"].startswith("host1 of 1 cannot be made; above is why. Take fewer --hosts, or allow more")


ENDED = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import inside
command = {"host": "host1", "words": [], "environment": {}}
running = [inside.start(command, {"host1": 1}, {"nsenter": tool}) for tool in sys.argv[2:]]
time.sleep(0.3)
subprocess.run(["/bin/true"])
sys.exit(inside.status_of(running))
"""


@pytest.mark.parametrize(("statuses", "expected"), [((0, 0), 0), ((0, 7), 7), ((7, 0), 7)])
def test_a_command_that_ends_at_once_has_a_status(statuses: tuple[int, ...], expected: int, tmp_path: Path) -> None:
    tools = [script(tmp_path / f"nsenter{index}", f"exit {status}") for index, status in enumerate(statuses)]
    command = [sys.executable, "-IS", "-c", ENDED, str(Path(inside.__file__).parent), *tools]
    assert subprocess.run(command, timeout=60, check=False).returncode == expected


def test_hosts_processes_are_put_in_commands() -> None:
    assert inside.place("/proc/{host1}/ns/net", {"host1": 7}) == "/proc/7/ns/net"
    assert inside.place("{host2}", {"host1": 7}) == "{host2}"


def test_a_folder_lives_as_long_as_its_owner() -> None:
    with own_folder() as path:
        remove_stale()
        assert left() == [path]
        assert path.stat().st_mode & 0o777 == 0o700
    assert left() == []


def test_what_a_killed_one_left_is_removed_and_nothing_else() -> None:
    here = Path(tempfile.gettempdir())
    stale, empty, other, same, file, link = (
        here / name
        for name in ("gradwire-cluster-s", "gradwire-cluster-e", "other", *(f"gradwire-cluster-{c}" for c in "ofl"))
    )
    for path in (stale, empty, other, same):
        path.mkdir()
    for path in (stale / folder.MARK, stale / "hostfile", other / folder.MARK, same / "hostfile"):
        path.touch()
    file.touch()
    link.symlink_to(other)
    remove_stale()
    assert left() == sorted([other, same, file, link])
    assert (other / folder.MARK).exists()
    assert (same / "hostfile").exists()


def test_another_user_s_folder_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Path(tempfile.gettempdir()) / f"{folder.PREFIX}theirs"
    theirs.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: theirs.stat().st_uid + 1)
    remove_stale()
    assert left() == [theirs]
