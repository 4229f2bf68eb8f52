"""The first process inside the namespaces of `gradwire cluster`: it makes the network and runs COMMAND.

A program of its own that imports nothing of gradwire, so that it starts at once. It is process 1 of a pid namespace:
when it ends, for whatever reason, the kernel ends everything in there, and with the last process the network goes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["main"]

#: what of the kernel the commands need, by a word of theirs: the module, the option and its word, what to do without
NEEDED = {
    "netem": ("sch_netem", "delay", "leave out --delay"),
    "tbf": ("sch_tbf", "rate", "give --rate unshaped"),
    "bridge": ("bridge", "", "use another machine"),
    "veth": ("veth", "", "use another machine"),
}
UNKNOWN = ("kind is unknown", "Unknown device type", "not supported")
END_SECONDS = 5.0


class Refusal(Exception):
    """The network cannot be made; the text says why, and names the remedy."""


def main(arguments: Sequence[str]) -> int:
    """`hold NAME`: be a host. `run TASK CHANNEL`: be process 1."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what COMMAND inherits; process 1 itself gets no signal without it
    if arguments[0] == "hold":
        return hold(arguments[1])
    with socket.socket(fileno=int(arguments[2])) as channel:
        channel.set_inheritable(False)
        try:
            answer = {"status": run(json.loads(Path(arguments[1]).read_text()), channel)}
        except Refusal as refusal:
            answer = {"refusal": str(refusal)}
        with suppress(OSError):  # gradwire is gone
            channel.send(json.dumps(answer).encode())
    return 0


def hold(name: str) -> int:
    """Keep this process's namespaces, which are a host's, as long as it lives."""
    socket.sethostname(name)
    print("ready", flush=True)
    while True:
        signal.pause()


def run(plan: dict[str, Any], channel: socket.socket) -> int:
    """Make hosts and network, start the commands and return their status."""
    running: list[subprocess.Popen[bytes]] = []
    threading.Thread(target=listen, args=(channel, running), daemon=True).start()
    processes = start_hosts(plan)
    for command in plan["network"]:
        make([place(word, processes) for word in command], plan["tools"])
    state = {"nsenter": plan["tools"]["nsenter"], "processes": processes}
    Path(plan["state"]).write_text(json.dumps(state))
    for command in plan["commands"]:
        running.append(start(command, processes, plan["tools"]))
    return status_of(running)


def listen(channel: socket.socket, running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Hand signals on to the commands; end everything when gradwire is gone, or when there is no command yet."""
    while (message := channel.recv(1)) and running:
        for process in tuple(running):
            with suppress(ProcessLookupError):
                os.kill(process.pid, message[0])
    os._exit(1)


def start_hosts(plan: dict[str, Any]) -> dict[str, int]:
    """A process in each host, by the host's names."""
    unshare = [plan["tools"]["unshare"], "--net", "--uts", sys.executable, "-IS", __file__, "hold"]
    holders = {
        host["name"]: subprocess.Popen(
            [*unshare, host["name"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        for host in plan["hosts"]
    }
    for name, holder in holders.items():
        if holder.stdout is None or holder.stdout.readline() != b"ready\n":
            raise Refusal(
                f"{name} of {len(holders)} cannot be made; above is why. Take fewer --hosts, or allow more with "
                "ulimit -u and sudo sysctl -w user.max_net_namespaces=10000 user.max_uts_namespaces=10000"
            )
    processes = {name: holder.pid for name, holder in holders.items()}
    return processes | {host["address"]: processes[host["name"]] for host in plan["hosts"]}


def place(word: str, processes: dict[str, int]) -> str:
    """The word with the number of a host's process where `{host1}` stands for it."""
    return re.sub(r"\{(\w+)\}", lambda found: str(processes.get(found[1], found[0])), word)


def make(command: list[str], tools: dict[str, str]) -> None:
    words = [tools.get(word, word) for word in command]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = " ".join(done.stderr.split()) or f"it ended with status {done.returncode}"
    for word, (module, option, instead) in NEEDED.items():
        if word in command and any(text in said for text in UNKNOWN):
            who = f"--{option} {command[command.index(option) + 1]}" if option else "gradwire cluster"
            raise Refusal(
                f"{who} needs {word}, which this kernel has not ({said}): load it with sudo modprobe {module}, "
                f"or {instead}"
            )
    raise Refusal(f"{' '.join(command)!r} failed: {said}")


def start(command: dict[str, Any], processes: dict[str, int], tools: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in its host. The object has to be kept: a forgotten one takes its process's status along."""
    enter = [tools["nsenter"], "--target", str(processes[command["host"]]), "--net", "--uts", "--"]
    return subprocess.Popen([*enter, *command["words"]], env=command["environment"])


def status_of(running: list[subprocess.Popen[bytes]]) -> int:
    """The first that is not 0, with the others asked to end."""
    while running:
        number, status = os.wait()  # orphans as well, which nobody else would reap
        if forget(number, running):
            code = os.waitstatus_to_exitcode(status)
            if code:
                end(running)
                return code if code > 0 else 128 - code
    return 0


def end(running: list[subprocess.Popen[bytes]]) -> None:
    """Ask, and wait a while; what is left ends with this process."""
    for process in running:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    last = time.monotonic() + END_SECONDS
    while running and time.monotonic() < last:
        number, _ = os.waitpid(-1, os.WNOHANG)
        forget(number, running)
        if not number:
            time.sleep(0.02)


def forget(number: int, running: list[subprocess.Popen[bytes]]) -> bool:
    """Take a process that has ended off the list, and say whether it was there."""
    for process in running:
        if process.pid == number:
            running.remove(process)
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
