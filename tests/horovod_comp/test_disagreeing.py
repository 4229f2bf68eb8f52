"""Ranks that compress in different ways: the job ends in time, and says what differs.

That every rank says so is tested under horovodrun, which here may end the others first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..launching import Backend, run_horovod

SCRIPT = Path(__file__).with_name("disagreeing.py")


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_the_job_fails_with_both_values(backend: Backend) -> None:
    done = run_horovod(SCRIPT, 2, backend, 90.0)
    assert done.returncode != 0
    errors = [line for line in done.stdout.splitlines() if "MismatchError: ranks disagree" in line]
    assert errors, done.stdout
    assert all("ratio=0.01" in line and "ratio=0.02" in line for line in errors)
