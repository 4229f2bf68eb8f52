"""The folder of one `gradwire cluster`: hostfile, agent, and what process 1 has to know."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .plan import Plan

__all__ = ["PREFIX", "own_folder", "remove_stale", "write"]

PREFIX = "gradwire-cluster-"
MARK = ".gradwire-cluster"
AGENT = Path(__file__).with_name("agent.py")
ETC_HOSTS = Path("/etc/hosts")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (mounted over, in there only)


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that is locked while its owner lives, and removed at the end."""
    path, lock = _claimed()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _claimed() -> tuple[Path, int]:
    while True:  # another start may take a folder for a stale one before it is locked
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock(path)
        if lock is not None:
            (path / MARK).touch()
            return path, lock


def remove_stale() -> None:
    """Remove this user's folders whose owner is dead: the kernel has taken the lock off."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = _lock(path)
        if lock is not None:
            if (path / MARK).exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):  # it is somebody else's and has that name, unless it is empty
                    path.rmdir()
            os.close(lock)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock; None for what is locked, is gone, is another user's or no folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def write(plan: Plan) -> list[list[str]]:
    """Write what launchers read.

    Returns:
        Commands that put in place what nobody outside the namespaces sees.
    """
    plan.hostfile.write_text("".join(f"{host.address} slots={plan.ranks_per_host}\n" for host in plan.hosts))
    plan.bin.mkdir()
    plan.agent.write_text(agent_script(plan))
    plan.agent.chmod(0o700)
    names = plan.folder / "hosts"
    names.write_text(plan.etc_hosts(ETC_HOSTS.read_text() if ETC_HOSTS.is_file() else ""))
    names.chmod(0o644)
    mounts = [["mount", "--bind", str(names), str(ETC_HOSTS)]] if ETC_HOSTS.is_file() else []
    if SHARED_MEMORY.is_dir():  # whatever is killed leaves nothing in there
        mounts.append(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(SHARED_MEMORY)])
    return mounts


def agent_script(plan: Plan) -> str:
    """Started by sh, since a #! line has no room for a long path of Python's."""
    return f'#!/bin/sh\nexec {shlex.join([sys.executable, "-IS", str(AGENT), str(plan.state)])} "$@"\n'
