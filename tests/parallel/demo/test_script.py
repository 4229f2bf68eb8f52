"""The README's first command as it stands, in an environment that launch/setup has made: `./launch/test parallel`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import gradwire

ROOT = Path(gradwire.__file__).parent
VENV = Path(os.environ.get("GRADWIRE_VENV", ROOT / ".venv"))
LIMIT = 200.0


def test_the_demo_s_script(tmp_path: Path) -> None:
    steps = set(re.findall(r"^    (?:optional_)?step (\w+) ", (ROOT / "launch/setup").read_text(), re.MULTILINE))
    done = {path.name for path in (VENV / "stamps").iterdir()}
    assert {"torch", "horovod", "gradwire"} <= steps <= done, "set-up is not complete: run ./launch/setup first"
    status, output = run([str(ROOT / "launch/demo"), "--steps", "2", "--out", str(tmp_path / "out")], tmp_path)
    assert status == 0, output
    assert "setup:" not in output, "there was nothing left to set up"
    assert "Horovod cannot be used" not in output
    for name in ("none", "topk:ratio=0.01", "onebit", "DeepSpeed Adam", "DeepSpeed OneBitAdam"):
        rows = [line.removeprefix(name).split() for line in output.splitlines() if line.startswith(f"{name} ")]
        (cells,) = [row for row in rows if len(row) == 9]
        assert all(float(cell.rstrip("x").replace(",", "")) > 0 for cell in cells[:5])
    assert output.splitlines()[-1] == f"picture: {tmp_path / 'out/loss.png'}"
    assert (tmp_path / "out/loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and output; a run that takes too long is killed with all that it started."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # the demo takes its ranks along, which are sessions of their own
        output, _ = process.communicate()
    return process.returncode, output
