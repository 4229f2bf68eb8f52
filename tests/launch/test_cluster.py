"""`gradwire cluster` for real, with tiny programs: hosts, links, statuses, and nothing left of any of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.clusters import COMMAND, need_namespaces, run_cluster

FACTS = """
import json, os, socket
links = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
variables = {name: value for name, value in os.environ.items() if name.startswith("GRADWIRE_CLUSTER_")}
print(json.dumps([socket.gethostname(), socket.gethostbyname(socket.gethostname()), sorted(links), variables]))
"""
#: sends to the first host, which runs it
SEND = """
import os, socket, subprocess, sys, time
size, host = int(sys.argv[1]), sys.argv[2]
child = '''
import socket, sys, time
with socket.create_connection(("host1", 5000)) as connection:
    started = time.monotonic()
    connection.sendall(bytes(int(sys.argv[1])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    print(time.monotonic() - started, flush=True)
'''
def through():
    return sum(int(line.split(":")[1].split()[0]) for line in open("/proc/net/dev") if "eth0" in line)
before = through()
with socket.create_server(("host1", 5000)) as server:
    import shlex
    sender = subprocess.Popen(["ssh", host, shlex.join([sys.executable, "-IS", "-c", child, str(size)])])
    connection, (address, _) = server.accept()
    with connection:
        got = 0
        while part := connection.recv(1 << 20):
            got += len(part)
        connection.sendall(b"!")
    assert sender.wait() == 0 and got == size, got
print(address, through() - before)
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-IS", "-c", code, *arguments]


def test_every_host_has_its_name_and_address_and_no_other_link() -> None:
    before = socket.if_nameindex()
    done = run_cluster("--hosts=3", "--ranks-per-host=2", "--everywhere", "--", *python(FACTS))
    assert done.returncode == 0, done.stderr
    found = sorted(json.loads(line) for line in done.stdout.splitlines())
    for index, (name, address, links, variables) in enumerate(found):
        assert (name, address, links) == (f"host{index + 1}", f"10.73.0.{index + 1}", ["eth0", "lo"])
        assert variables["GRADWIRE_CLUSTER_HOST_INDEX"] == str(index)
        assert variables["GRADWIRE_CLUSTER_HOSTS"] == "10.73.0.1:2,10.73.0.2:2,10.73.0.3:2"
        assert variables["GRADWIRE_CLUSTER_RANKS"] == "6"
    assert len(found) == 3
    assert socket.if_nameindex() == before


def test_the_agent_starts_commands_in_other_hosts() -> None:
    script = (
        "for host in host1 10.73.0.2 localhost; do ssh -x $host hostname; done; {agent} host2 'echo $0 \"a  b\"'; "
        "echo in | ssh host2 cat; echo in | ssh -n host2 cat; cat {hostfile}; ssh host2 'exit 3'; echo $?; "
        "ssh host2 'echo $GRADWIRE_CLUSTER_HOST_INDEX'; ssh host3 true; echo $?"
    )
    done = run_cluster("--", "sh", "-c", script)
    assert done.stdout.splitlines() == [
        *("host1", "host2", "host1", "/bin/sh a  b", "in"),
        *("10.73.0.1 slots=1", "10.73.0.2 slots=1", "3", "1", "255"),
    ]
    assert "no host 'host3'; there are host1, host2" in done.stderr


def test_a_link_is_as_slow_as_it_should_be_and_loopback_is_not_shaped() -> None:
    done = run_cluster("--rate=10mbit", "--", *python(SEND, "2000000", "host2"))
    assert done.returncode == 0, done.stderr
    seconds, address, through = done.stdout.split()
    assert float(seconds) >= 1.0, "2 MB at 10 Mbit/s take 1.6 s"
    assert address == "10.73.0.2"
    assert int(through) > 2_000_000
    done = run_cluster("--rate=64kbit", "--", *python(SEND, "2000000", "host1"))
    assert done.returncode == 0, done.stderr
    _, address, through = done.stdout.split()
    assert address == "10.73.0.1"
    assert int(through) < 100_000, "a host talks to itself without its link"


def test_a_delay_or_a_clear_refusal() -> None:
    done = run_cluster("--delay=100ms", "--rate=unshaped", "--", *python(SEND, "1", "host2"))
    if done.returncode == 0:
        assert float(done.stdout.split()[0]) >= 0.2, "there and back"
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("gradwire: --delay 100ms needs netem, which this kernel has not (")
        assert done.stderr.endswith("load it with sudo modprobe sch_netem, or leave out --delay\n")


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("kill $$", 143), ("no-such", 127)])
def test_the_status_is_the_command_s(script: str, status: int) -> None:
    assert run_cluster("--", "sh", "-c", script).returncode == status


def test_where_one_of_several_fails_the_others_end() -> None:
    script = 'test {host_index} = 1 && exit 5; trap "echo asked; exit 0" TERM; sleep 100 & wait'
    done = run_cluster("--hosts=3", "--everywhere", "--", "sh", "-c", script)
    assert done.returncode == 5
    assert set(done.stdout.split()) <= {"asked"}, "at once, unless the trap was not set yet"


def test_what_the_command_left_running_ends_with_it(tmp_path: Path) -> None:
    script = f"setsid sleep 1000 & ssh host2 'sleep 1000' & readlink /proc/self/ns/pid >{tmp_path / 'space'}; sleep 0.2"
    done = run_cluster("--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    space = (tmp_path / "space").read_text().strip()
    assert space not in {of(path) for path in Path("/proc").glob("[0-9]*/ns/pid")}


def of(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def test_nothing_is_left_and_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    stale = tmp_path / "gradwire-cluster-stale"
    stale.mkdir()
    (stale / ".gradwire-cluster").touch()
    (tmp_path / "other").mkdir()
    done = run_cluster("--", "sh", "-c", "ls $TMPDIR", variables={"TMPDIR": str(tmp_path)})
    assert [name.startswith("gradwire-cluster-") for name in done.stdout.split()] == [True, False]
    assert "gradwire-cluster-stale" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_two_at_a_time_do_not_meet(tmp_path: Path) -> None:
    inner = [*COMMAND, "--rate=unshaped", "--", "sh", "-c", "hostname; ssh host2 hostname"]
    done = run_cluster("--", *inner, variables={"TMPDIR": str(tmp_path)})
    assert done.stdout.split() == ["host1", "host2"], "one inside the other"
    assert list(tmp_path.iterdir()) == []


def test_it_runs_without_root(tmp_path: Path) -> None:
    """As root this takes root's rights away first: in a user namespace that knows one user, who is not root."""
    need_namespaces()
    drop = ["unshare", "--user", "--map-user=1000"] if os.geteuid() == 0 else []
    command = [*drop, *COMMAND, "--", "sh", "-c", "id -u; hostname; ssh host2 hostname"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if drop and subprocess.run([*drop, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root may not make a user namespace here")
    if done.returncode:
        assert "may not make namespaces here" in done.stderr
        assert "sudo sysctl -e -w user.max_user_namespaces=10000" in done.stderr
    else:
        assert done.stdout.split() == ["0", "host1", "host2"]
    assert list(tmp_path.iterdir()) == []
