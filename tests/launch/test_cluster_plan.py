"""What `gradwire cluster` is going to do: rates, delays, the network's commands, and what COMMAND gets to know."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path

import gradwire
import pytest
from gradwire.launch import cli
from gradwire.launch.cluster.network import UNSHAPED, Delay, Rate, commands, delay, hosts, rate
from gradwire.launch.cluster.plan import Plan

FOLDER = Path("/tmp/gradwire-cluster-XXXX")  # noqa: S108 - a name in texts


def plan(ranks_per_host: int = 1) -> Plan:
    return Plan(count=3, ranks_per_host=ranks_per_host, rate=rate("100mbit"), delay=None, folder=FOLDER)


@pytest.mark.parametrize(
    ("text", "bits"),
    [("64kbit", 64_000), ("100mbit", 10**8), ("2.5Gbit", 25 * 10**8), ("100gbit", 10**11), ("unshaped", 0)],
)
def test_a_rate(text: str, bits: int) -> None:
    assert rate(text) == Rate(text.lower(), bits)


@pytest.mark.parametrize("text", ["", "0", "100", "mbit", "-1mbit", "63kbit", "101gbit", "1mbps", "1 mbit", "1e3mbit"])
def test_a_rate_that_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        rate(text)
    assert str(error.value).startswith(f"{text!r} is not allowed; allowed are")
    assert "from 64kbit to 100gbit, such as 100mbit or 2.5gbit, and unshaped" in str(error.value)


@pytest.mark.parametrize(("text", "seconds"), [("500us", 5e-4), ("5ms", 5e-3), ("0.5S", 0.5), ("10s", 10.0)])
def test_a_delay(text: str, seconds: float) -> None:
    assert delay(text) == Delay(text.lower(), seconds)


@pytest.mark.parametrize("text", ["", "5", "0ms", "-5ms", "11s", "5min", "ms"])
def test_a_delay_that_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="above 0 and up to 10s, such as 5ms") as error:
        delay(text)
    assert str(error.value).startswith(f"{text!r} is not allowed; allowed are")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--hosts", "1", "from 2 to 64"),
        ("--hosts", "65", "from 2 to 64"),
        ("--ranks-per-host", "0", "from 1 to 64"),
        ("--rate", "fast", "from 64kbit to 100gbit"),
        ("--delay", "long", "up to 10s"),
    ],
)
def test_an_option_that_is_refused(option: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["cluster", f"{option}={value}"])
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: {value!r} is not allowed" in message
    assert allowed in message


def test_every_link_is_shaped_at_both_ends_and_loopback_is_not() -> None:
    shaped = [command for command in commands(hosts(2), rate("1gbit"), None) if "tc" in command]
    expected = "qdisc add dev {} root handle 10: tbf rate 1gbit burst 500000 latency 50ms"
    assert [" ".join(command) for command in shaped] == [
        f"tc {expected.format('port1')}",
        f"nsenter --target {{host1}} --net tc {expected.format('eth0')}",
        f"tc {expected.format('port2')}",
        f"nsenter --target {{host2}} --net tc {expected.format('eth0')}",
    ]
    assert not [command for command in commands(hosts(2), UNSHAPED, None) if "tc" in command]


def test_a_delay_is_on_the_hosts_side_only_with_the_rate_below_it() -> None:
    made = [" ".join(command) for command in commands(hosts(2), rate("100mbit"), delay("5ms")) if "tc" in command]
    assert [command for command in made if "netem" in command] == [
        f"nsenter --target {{host{number}}} --net tc qdisc add dev eth0 root handle 1: netem delay 5ms limit 1000"
        for number in (1, 2)
    ]
    assert sum("dev eth0 parent 1:1 handle 10: tbf rate 100mbit" in command for command in made) == 2


@pytest.mark.parametrize(("text", "burst"), [("64kbit", 16384), ("10mbit", 16384), ("100mbit", 50000)])
def test_an_idle_link_sends_little_at_once(text: str, burst: int) -> None:
    (first, *_) = [command for command in commands(hosts(2), rate(text), None) if "tbf" in command]
    assert first[first.index("burst") + 1] == str(burst)


def test_netem_holds_all_that_is_on_its_way() -> None:
    (command, _) = [c for c in commands(hosts(2), rate("10gbit"), delay("100ms")) if "netem" in c]
    assert int(command[-1]) * 1500 >= 2 * 10**10 / 8 * 0.1


def test_the_network_is_made_of_its_own_interfaces_only() -> None:
    outside = [command for command in commands(hosts(64), rate("1gbit"), None) if command[0] != "nsenter"]
    names = {command[command.index("dev") + 1] for command in outside if "dev" in command}
    assert names == {"lo", "switch", *(f"port{number}" for number in range(1, 65))}


def test_placeholders() -> None:
    words = ["-np", "{ranks}", "-H", "{hosts}", '--json={"x": {}}', "{hosts_count}x{ranks_per_host}", "{other}"]
    assert plan(2).words(words, 0) == [
        *("-np", "6", "-H", "10.73.0.1:2,10.73.0.2:2,10.73.0.3:2", '--json={"x": {}}', "3x2", "{other}")
    ]
    words = ["{hostfile}", "{interface}", "{master}:29500", "{agent}", "{host_index}"]
    assert plan().words(words, 2) == [f"{FOLDER}/hostfile", "eth0", "10.73.0.1:29500", f"{FOLDER}/bin/ssh", "2"]


def test_every_placeholder_is_a_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("KEPT", "yes")
    environment = plan().environment(1)
    for name, value in plan().placeholders(1).items():
        assert environment[f"GRADWIRE_CLUSTER_{name[1:-1].upper()}"] == value
    assert environment["PATH"] == f"{FOLDER}/bin:/usr/bin"
    assert environment["KEPT"] == "yes"
    assert environment["NCCL_SOCKET_IFNAME"] == environment["GLOO_SOCKET_IFNAME"] == "eth0"


def test_the_documentation_names_all_of_them() -> None:
    text = (Path(gradwire.__file__).parent / "docs" / "cluster.md").read_text()
    variables = set(plan().variables(0))
    named = set(re.findall(r"`([A-Z]+(?:_[A-Za-z]+)+)`", text))
    assert named == variables
    rows = re.findall(r"^\| `(\{\w+\})` \| `(\w+)` \|", text, re.MULTILINE)
    assert rows == [(name, f"GRADWIRE_CLUSTER_{name[1:-1].upper()}") for name in plan().placeholders(0)]


def test_the_commands_of_the_documentation_are_understood() -> None:
    text = (Path(gradwire.__file__).parent / "docs" / "cluster.md").read_text()
    lines = [
        shlex.split(line) for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    assert {"horovodrun", "mpirun", "torchrun", "deepspeed"} <= {word for line in lines for word in line}
    for program, *arguments in lines:
        assert program == "gradwire"
        options = cli.command_line().parse_args(arguments)
        assert all("{" not in word for word in plan().words(options.command, 0))


def test_names_are_added_to_etc_hosts() -> None:
    lines = plan().etc_hosts("127.0.0.1 localhost").splitlines()
    assert lines[:3] == ["127.0.0.1 localhost", "10.73.0.1 host1", "::ffff:10.73.0.1 host1.mapped"]
    assert len(lines) == 7


def test_without_a_command_the_plan_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert cli.main(["cluster", "--hosts=3", "--rate=2.5gbit", "--delay=5ms", "--ranks-per-host=2"]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["host3", "10.73.0.3", "eth0", "2", "2.5gbit", "5ms"] in lines
    assert ["{ranks}", "6"] in lines
    assert ["GRADWIRE_CLUSTER_RANKS", "6"] in lines
    assert "  ip link add name port3 type veth peer name eth0 netns /proc/{host3}/ns/net\n" in shown
    assert "netem delay 5ms" in shown
    assert "Nothing was changed." in shown
    assert sorted(tmp_path.iterdir()) == before


def test_the_plan_needs_rich(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delitem(sys.modules, "gradwire.launch.cluster.show", raising=False)
    assert cli.main(["cluster"]) == 1
    assert 'pip install "gradwire[demo]"' in capsys.readouterr().err
