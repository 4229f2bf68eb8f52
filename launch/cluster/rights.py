"""What `gradwire cluster` needs of the machine: programs, and the right to make namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess

from ...compressors.errors import UnsupportedError

__all__ = ["flags", "tools"]

#: program -> Debian package
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
#: not on every user's PATH
SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
#: `--kill-child`: what is inside does not outlive `unshare`
FLAGS = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
USER_FLAGS = ("--user", "--map-root-user")
#: those that there are decide
SETTINGS = (
    "user.max_user_namespaces=10000",
    "user.max_net_namespaces=10000",
    "kernel.unprivileged_userns_clone=1",
    "kernel.apparmor_restrict_unprivileged_userns=0",
)


def tools() -> dict[str, str]:
    """The programs' paths, by name.

    Raises:
        UnsupportedError: one is missing.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
    found = {name: shutil.which(name, path=path) for name in TOOLS}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        packages = " ".join(sorted({TOOLS[name] for name in missing}))
        raise UnsupportedError(
            f"gradwire cluster needs {', '.join(missing)}, not found on PATH: sudo apt-get install {packages}"
        )
    return {name: where for name, where in found.items() if where is not None}


def flags(unshare: str) -> list[str]:
    """Options of `unshare` that make the namespaces: root's own if it may, otherwise those in a user namespace.

    Raises:
        UnsupportedError: neither is allowed here.
    """
    said = ""
    for choice in ([[*FLAGS]] if os.geteuid() == 0 else []) + [[*USER_FLAGS, *FLAGS]]:
        done = subprocess.run(
            [unshare, *choice, "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return choice
        said = " ".join(done.stderr.split()) or f"unshare ended with status {done.returncode}"
    raise UnsupportedError(
        f"gradwire cluster may not make namespaces here ({said}): run it with sudo, or allow it to all users with "
        f"sudo sysctl -e -w {' '.join(SETTINGS)}; a container needs --privileged"
    )
