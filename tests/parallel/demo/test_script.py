"""The README's first command as it stands, in an environment that launch/setup has made: `./launch/test parallel`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import gradwire

from ...launching import run_job

ROOT = Path(gradwire.__file__).parent
VENV = Path(os.environ.get("GRADWIRE_VENV", ROOT / ".venv"))
LIMIT = 200.0


def test_the_demo_s_script(tmp_path: Path) -> None:
    steps = set(re.findall(r"^    (?:optional_)?step (\w+) ", (ROOT / "launch/setup").read_text(), re.MULTILINE))
    done = {path.name for path in (VENV / "stamps").iterdir()}
    assert {"torch", "horovod", "gradwire"} <= steps <= done, "set-up is not complete: run ./launch/setup first"
    command = [str(ROOT / "launch/demo"), "--steps", "2", "--out", str(tmp_path / "out")]
    done_job = run_job(command, LIMIT, tmp_path)
    output = done_job.stdout
    assert done_job.returncode == 0, output
    assert "setup:" not in output, "there was nothing left to set up"
    assert "Horovod cannot be used" not in output
    for name in ("none", "topk:ratio=0.01", "onebit", "DeepSpeed Adam", "DeepSpeed OneBitAdam"):
        rows = [line.removeprefix(name).split() for line in output.splitlines() if line.startswith(f"{name} ")]
        (cells,) = [row for row in rows if len(row) == 9]
        assert all(float(cell.rstrip("x").replace(",", "")) > 0 for cell in cells[:5])
    assert output.splitlines()[-1] == f"picture: {tmp_path / 'out/loss.png'}"
    assert (tmp_path / "out/loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
