"""`gradwire cluster`: run a command on emulated hosts, which are network namespaces of this machine."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...compressors.errors import ConfigError, MissingDependencyError
from ..arguments import between
from . import rights
from .folder import PREFIX, own_folder, remove_stale, write
from .network import delay, rate
from .plan import Plan
from .supervise import supervise

__all__ = ["add_arguments", "run"]

INSIDE = Path(__file__).with_name("inside.py")
USAGE = "gradwire cluster [OPTIONS] [-- COMMAND ...]"
EPILOG = (
    "COMMAND runs on the first host, and everything there is ended with it. In COMMAND {hosts}, {hostfile}, {ranks}, "
    "{hosts_count}, {ranks_per_host}, {interface}, {master}, {agent} and {host_index} stand for what `gradwire "
    "cluster` alone prints. Example: gradwire cluster --hosts 2 --rate 100mbit -- horovodrun -np {ranks} -H {hosts} "
    "--gloo python train.py"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `gradwire cluster`."""
    parser.usage, parser.epilog = USAGE, EPILOG
    parser.add_argument("--hosts", type=between(2, 64), default=2, metavar="N", help="default: 2")
    parser.add_argument(
        "--rate",
        type=rate,
        default="1gbit",
        metavar="RATE",
        help="of each host's link in either direction, as tc has it: 100mbit, 2.5gbit, …, unshaped (default: 1gbit)",
    )
    parser.add_argument(
        "--delay", type=delay, metavar="TIME", help="from one host to another, one way: 500us, 5ms, … (default: none)"
    )
    parser.add_argument("--ranks-per-host", type=between(1, 64), default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--everywhere", action="store_true", help="start COMMAND once in every host, as torchrun wants it"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="without it the plan is printed, nothing is done"
    )


def run(options: argparse.Namespace) -> int:
    """Print the plan, or run COMMAND and return its status.

    Raises:
        UnsupportedError: a program, a right or a part of the kernel is missing.
        ConfigError: COMMAND is no program.
        ClusterError: something from outside ended the namespaces.
    """
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        return show(options)
    remove_stale()
    with own_folder() as folder:
        plan = plan_of(options, folder)
        mounts = write(plan)
        check(plan.words(command, 0)[0], plan.environment(0)["PATH"])
        tools = rights.tools()
        start = [tools["unshare"], *rights.flags(tools["unshare"])]
        task = folder / "task.json"
        task.write_text(json.dumps(task_of(plan, mounts, command, tools, options.everywhere)))
        return supervise([*start, sys.executable, "-IS", str(INSIDE), "run", str(task)])


def show(options: argparse.Namespace) -> int:
    try:
        from .show import show as show_plan
    except ImportError as error:
        raise MissingDependencyError(error.name or "rich", "demo", "the plan of gradwire cluster") from error
    user = rights.USER_FLAGS if os.geteuid() else ()
    start = ["unshare", *user, *rights.FLAGS, "python", "inside.py"]
    show_plan(plan_of(options, Path(tempfile.gettempdir()) / f"{PREFIX}XXXX"), start)
    return 0


def check(program: str, path: str) -> None:
    if shutil.which(program, path=path) is None:
        raise ConfigError(f"COMMAND is {program!r}, which is no program on PATH: write its path, or install it")


def plan_of(options: argparse.Namespace, folder: Path) -> Plan:
    return Plan(
        count=options.hosts,
        ranks_per_host=options.ranks_per_host,
        rate=options.rate,
        delay=options.delay,
        folder=folder,
    )


def task_of(
    plan: Plan, mounts: Sequence[Sequence[str]], command: Sequence[str], tools: dict[str, str], everywhere: bool
) -> dict[str, Any]:
    """What process 1 has to do."""
    return {
        "tools": tools,
        "state": str(plan.state),
        "hosts": [host._asdict() for host in plan.hosts],
        "network": [*mounts, *plan.network()],
        "commands": [
            {"host": plan.hosts[i].name, "words": plan.words(command, i), "environment": plan.environment(i)}
            for i in range(plan.count if everywhere else 1)
        ],
    }
