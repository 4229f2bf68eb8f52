"""`hvd.join()`: sums go on with zeros from the ranks that joined, gathers are refused with a clear error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..launching import Backend, run_horovod

SCRIPT = Path(__file__).with_name("joining.py")
LIMIT = 90.0
RANKS = 3
SUMS = {"all_reduce": str(8 * (RANKS - 1)), "all_reduce of another": str(RANKS - 1)}
REFUSED = re.compile(r"gradients: a rank is in hvd\.join\(\), and Horovod gathers nothing then\. .* FP16 or RandomK")


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_while_a_rank_has_joined(backend: Backend) -> None:
    """Also with a warm response cache, which then makes Horovod itself crash or hang; and the job ends."""
    done = run_horovod(SCRIPT, RANKS, backend, LIMIT)
    assert done.returncode == 0, done.stdout
    text = re.sub(r"\[[\d,]+\]<std(out|err)>:", "", done.stdout)  # horovodrun marks what each rank writes
    for rank in range(RANKS - 1):
        found = dict(re.findall(rf"outcome on rank {rank}: (.*?): (.*)", text))
        assert {kind: found[kind] for kind in SUMS} == SUMS, done.stdout
        for kind in ("all_gather", "all_to_all", "broadcast"):
            assert REFUSED.fullmatch(found[kind]), done.stdout
