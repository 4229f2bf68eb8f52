"""`launch/setup` for real, with real Python, pip and compiler, on a machine that has no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gradwire

SETUP = Path(gradwire.__file__).parent / "launch" / "setup"
NO_NETWORK = ["unshare", "--map-root-user", "--net"]
REFUSING = "http://127.0.0.1:9"


def offline() -> tuple[list[str], dict[str, str]]:
    """A network namespace of its own, or, where none can be made, a proxy that refuses: prefix and variables."""
    if (
        shutil.which("unshare")
        and subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode == 0
    ):
        return NO_NETWORK, {}
    return [], {"https_proxy": REFUSING, "http_proxy": REFUSING}


def test_without_a_network_two_lines_say_what_is_missing_and_what_to_do(tmp_path: Path) -> None:
    prefix, variables = offline()
    venv = tmp_path / "venv"
    df = tmp_path / "bin" / "df"
    df.parent.mkdir()
    df.write_text(
        "#!/usr/bin/env bash\nprintf 'head\\n/dev/x 9 9 99999999 9%% /\\n'\n"
    )  # room enough, wherever this runs
    df.chmod(0o755)
    environment = {
        "PATH": f"{df.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),  # an empty cache
        "PYTHON": sys.executable,
        "GRADWIRE_VENV": str(venv),
        "PIP_CONFIG_FILE": os.devnull,  # no index or folder of wheels of this machine's own
        "PIP_RETRIES": "1",
        **variables,
    }
    done = subprocess.run(
        [*prefix, str(SETUP)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"setup: no network: pip cannot reach its package index. Log: {venv}/setup-logs/torch.log",
        "remedy: check the connection, or set a proxy (https_proxy) or an index (pip config), and run this again",
    ]
    assert [path.name for path in (venv / "stamps").iterdir()] == ["venv"]
    assert not list(venv.rglob("torch-*"))
