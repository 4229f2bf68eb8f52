"""What launchers call as `ssh` inside `gradwire cluster`: runs a command in another emulated host.

A program of its own that imports nothing of gradwire: launchers start it once per host, or more often. It takes what
ssh takes, does what ssh does, and drops what has no meaning here: there is no other machine to log into.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

__all__ = ["Call", "main", "parse", "program", "variables"]

#: options of OpenSSH that take a value
VALUED = "BbcDEeFIiJLlmOoPpQRSWw"
HERE = ("localhost", "127.0.0.1", "::1")
NO_HOST = 255  # as ssh ends


class Call(NamedTuple):
    """A command line of ssh.

    Attributes:
        host: without the user; empty if it is missing.
        command: its words; none for a shell.
        no_input: -n was given.
    """

    host: str
    command: list[str]
    no_input: bool


def parse(arguments: Sequence[str]) -> Call:
    """Options may stand before the host and behind it, as horovodrun writes them; the first other word is COMMAND's."""
    rest, host, no_input = list(arguments), "", False
    while rest:
        word = rest[0]
        if word == "--":
            rest.pop(0)
            if host:
                break
        elif word.startswith("-") and word != "-":
            rest.pop(0)
            flags, valued = flags_of(word)
            no_input = no_input or "n" in flags
            if valued:
                del rest[:1]
        elif host:
            break
        else:
            host = rest.pop(0).removeprefix("ssh://").rpartition("@")[2]
    return Call(host, rest, no_input)


def flags_of(word: str) -> tuple[str, bool]:
    """The flags in a word such as `-xnp`, and whether the next word is the last one's value."""
    for index, letter in enumerate(word[1:], 1):
        if letter in VALUED:
            return word[1:index], index == len(word) - 1
    return word[1:], False


def program(call: Call, processes: Mapping[str, int], nsenter: str) -> list[str]:
    """What to execute.

    ssh joins the words by spaces and gives them to the remote user's shell, and launchers quote for that. It is no
    way in for others: the words come from the launcher that the user started, with the rights that it has already.
    """
    enter = [nsenter, "--target", str(processes[call.host]), "--net", "--uts", "--"] if call.host not in HERE else []
    return [*enter, "/bin/sh", *(["-c", " ".join(call.command)] if call.command else [])]


def variables(call: Call, processes: Mapping[str, int]) -> dict[str, str]:
    """What differs from one host to the next; unlike ssh, everything else of the environment comes along."""
    if call.host in HERE:
        return {}
    places = list(dict.fromkeys(processes.values()))  # in the hosts' order; each is there by name and by address
    return {"GRADWIRE_CLUSTER_HOST_INDEX": str(places.index(processes[call.host]))}


def main(state: Path, arguments: Sequence[str]) -> NoReturn:
    """Become the command."""
    known = json.loads(state.read_text())
    call, processes = parse(arguments), known["processes"]
    if call.host not in (*processes, *HERE):
        print(f"gradwire cluster: no host {call.host!r}; there are {', '.join(processes)}", file=sys.stderr)
        sys.exit(NO_HOST)
    if call.no_input:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    words = program(call, processes, known["nsenter"])
    os.execve(words[0], words, os.environ | variables(call, processes))  # noqa: S606  (the words are a launcher's own)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
