"""`gradwire cluster` in tests: where this machine refuses it, the refusal is what is checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import pytest

__all__ = ["COMMAND", "children", "need_namespaces", "run_cluster"]

COMMAND = [sys.executable, "-m", "gradwire.launch.cli", "cluster"]
REFUSAL = (
    r"gradwire cluster may not make namespaces here \(.+\): run it with sudo, or .+ needs --privileged"
    r"|gradwire cluster needs .+, not found on PATH: sudo apt-get install .+"
    r"|.+ needs (bridge|veth|tbf), which this kernel has not \(.+\): load it with sudo modprobe .+"
)


@lru_cache(maxsize=1)
def refusal() -> str:
    """What this machine says to the plainest of clusters; empty if it makes one."""
    done = subprocess.run([*COMMAND, "--", "true"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 0:
        return ""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(f"gradwire: ({REFUSAL})", last), f"no cluster, and no refusal with a remedy: {done.stderr}"
    return last


def need_namespaces() -> None:
    """Go on where there may be a cluster; elsewhere the refusal was checked, and the rest is skipped."""
    if refusal():
        pytest.skip(refusal())


def run_cluster(
    *arguments: str, timeout: float = 60.0, variables: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it as a user does, with a time limit."""
    need_namespaces()
    return subprocess.run(
        [*COMMAND, *arguments],
        env=os.environ | dict(variables or {}),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def children(process: int) -> list[int]:
    """Its descendants that live, parents first."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if state != "Z":
            parents.setdefault(int(parent), []).append(int(path.parent.name))
    found = [process]
    for one in found:  # grows on the way
        found += sorted(parents.get(one, []))
    return found[1:]
