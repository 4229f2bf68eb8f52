"""One process: Horovod reduces nothing, so nothing is compressed, and one line says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..launching import run_horovod

SCRIPT = Path(__file__).with_name("alone.py")
LINE = "one process: Horovod exchanges nothing, so nothing is compressed"
RESULT = "ranks 1, difference 0.0, call [1.0]"


def test_horovodrun_with_one_rank() -> None:
    done = run_horovod(SCRIPT, 1, "gloo", 90.0)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(LINE) == 1
    assert RESULT in done.stdout


def test_without_a_launcher() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=90, check=True)
    assert done.stderr.count(LINE) == 1
    assert done.stdout.strip() == RESULT
