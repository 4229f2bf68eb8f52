"""What stands in for ssh inside `gradwire cluster`: it reads ssh's command line as launchers write it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from gradwire.launch.cluster import agent
from gradwire.launch.cluster.agent import Call, parse, program, variables
from hypothesis import given
from hypothesis import strategies as st

PROCESSES = {"host1": 11, "host2": 12, "10.73.0.1": 11, "10.73.0.2": 12}
ENTER = ["/usr/bin/nsenter", "--target", "12", "--net", "--uts", "--"]
OPTIONS = st.lists(
    st.sampled_from([["-x"], ["-2"], ["-q", "-T"], ["-o", "BatchMode=yes"], ["-oPort=1"], ["-p", "22"], ["-tp22"]])
)


@pytest.mark.parametrize(
    ("line", "call"),
    [
        # horovodrun
        (
            [
                "-o",
                "PasswordAuthentication=no",
                "-o",
                "StrictHostKeyChecking=no",
                "10.73.0.2",
                "-p",
                "22",
                "cd /x; a 'b c'",
            ],
            Call("10.73.0.2", ["cd /x; a 'b c'"], False),
        ),
        (["host2", "-i", "key", "true"], Call("host2", ["true"], False)),
        # Open MPI
        (
            ["-x", "10.73.0.2", "PATH=/a:$PATH ; orted -mca x '1'"],
            Call("10.73.0.2", ["PATH=/a:$PATH ; orted -mca x '1'"], False),
        ),
        # pdsh
        (
            ["-2", "-a", "-x", "-lme", "10.73.0.2", "export A=1; python x"],
            Call("10.73.0.2", ["export A=1; python x"], False),
        ),
        # DeepSpeed
        (
            ["-o", "PasswordAuthentication=no", "10.73.0.1", "hostname", "-I"],
            Call("10.73.0.1", ["hostname", "-I"], False),
        ),
        # people
        (["-n", "me@host1", "ls"], Call("host1", ["ls"], True)),
        (["-xnp", "22", "ssh://me@host1", "--", "-x"], Call("host1", ["-x"], True)),
        (["--", "host1", "ls", "--", "-n"], Call("host1", ["ls", "--", "-n"], False)),
        (["host1"], Call("host1", [], False)),
        (["-x"], Call("", [], False)),
        ([], Call("", [], False)),
    ],
)
def test_a_command_line_of_ssh(line: list[str], call: Call) -> None:
    assert parse(line) == call


@given(OPTIONS, OPTIONS, st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)))
def test_options_before_and_behind_the_host_change_nothing(
    before: list[list[str]], behind: list[list[str]], words: list[str]
) -> None:
    options = [word for option in before for word in option], [word for option in behind for word in option]
    assert parse([*options[0], "host2", *options[1], "run", *words]) == Call("host2", ["run", *words], False)


def test_the_words_are_a_shell_s_on_the_other_host() -> None:
    call = parse(["host2", "echo", "$A;", "true"])
    assert program(call, PROCESSES, "/usr/bin/nsenter") == [*ENTER, "/bin/sh", "-c", "echo $A; true"]
    assert program(parse(["10.73.0.2"]), PROCESSES, "/usr/bin/nsenter") == [*ENTER, "/bin/sh"]
    assert program(parse(["localhost", "true"]), PROCESSES, "/usr/bin/nsenter") == ["/bin/sh", "-c", "true"]


@pytest.mark.parametrize("host", ["host2", "10.73.0.2"])
def test_the_other_host_has_its_own_index(host: str) -> None:
    assert variables(parse([host, "true"]), PROCESSES) == {"GRADWIRE_CLUSTER_HOST_INDEX": "1"}
    assert variables(parse(["localhost", "true"]), PROCESSES) == {}


def test_an_unknown_host_is_refused_with_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"nsenter": "nsenter", "processes": PROCESSES}))
    with pytest.raises(SystemExit) as ended:
        agent.main(state, ["host9", "true"])
    assert ended.value.code == 255
    said = capsys.readouterr().err
    assert "no host 'host9'; there are host1, host2, 10.73.0.1, 10.73.0.2" in said


def test_it_becomes_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, became = tmp_path / "state.json", []
    state.write_text(json.dumps({"nsenter": "/usr/bin/nsenter", "processes": PROCESSES}))
    monkeypatch.setattr(agent.os, "execve", lambda *call: became.append(call) or sys.exit(0))
    with pytest.raises(SystemExit):
        agent.main(state, ["host2", "true"])
    ((path, words, environment),) = became
    assert (path, words) == ("/usr/bin/nsenter", [*ENTER, "/bin/sh", "-c", "true"])
    assert environment["GRADWIRE_CLUSTER_HOST_INDEX"] == "1"
