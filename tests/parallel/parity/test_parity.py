"""With `legacy`, our 1-bit optimizers on the newest DeepSpeed give the bits that 0.19.6's own ones gave.

Two processes per release, which run the whole table of tests/support/deepspeed_cases.py one after the other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from ...launching import run_job
from ...support.deepspeed_cases import CASES, RESUMES, Case, Resume
from ...support.reducing import bits

OLD, NEW = "0.19.6", "0.19.8"
TESTS = Path(__file__).parents[2]
RANKS, LIMIT = 2, 400.0

#: by rank: by case, parameters by name
Results = list[dict[str, dict[str, torch.Tensor]]]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Of both releases; the old one first, since it writes the checkpoints."""
    folder, checkpoints = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("checkpoints")
    return {release: run(release, folder, checkpoints) for release in (OLD, NEW)}


def run(release: str, folder: Path, checkpoints: Path) -> Results:
    script = [str(Path(__file__).with_name("ranks.py")), release, str(folder), str(checkpoints)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    job = run_job([*torchrun, *script], LIMIT, variables={"PYTHONPATH": search_path(release)})
    assert job.returncode == 0, job.stdout
    return [torch.load(folder / f"{release}.{rank}.pt", weights_only=True) for rank in range(RANKS)]


def search_path(release: str) -> str:
    paths = [str(TESTS)]
    if release == OLD:
        old = Path(sys.prefix) / f"deepspeed-{OLD}"
        assert old.is_dir(), f"{old} is not there: run launch/setup"
        paths.insert(0, str(old))
    return os.pathsep.join(paths)


@pytest.mark.parametrize("case", [*CASES, *RESUMES], ids=str)
def test_bits_are_those_of_the_old_release(results: dict[str, Results], case: Case | Resume) -> None:
    for ours, theirs in zip(results[NEW], results[OLD], strict=True):
        here, there = ours[f"legacy {case}"], theirs[f"legacy {case}"]
        assert here.keys() == there.keys()
        assert [name for name in here if bits(here[name]) != bits(there[name])] == []
        assert all(bool(tensor.isfinite().all()) for tensor in there.values())


def agree(case: Case, frozen: bool) -> bool:
    """Whether replicas should be equal: those of 0/1 Adam part on purpose, once its variance is frozen."""
    return case.optimizer != "ZeroOneAdam" or not frozen


@pytest.mark.parametrize("case", [case for case in CASES if agree(case, True)], ids=str)
def test_replicas_are_equal_in_the_end(results: dict[str, Results], case: Case) -> None:
    assert parted(results[OLD], f"legacy {case}") == []


@pytest.mark.parametrize("case", [case for case in RESUMES if agree(case.case, case.is_frozen)], ids=str)
def test_replicas_do_not_part_after_an_old_checkpoint(results: dict[str, Results], case: Resume) -> None:
    assert parted(results[NEW], f"default {case}") == []


def test_the_old_releases_replicas_do_part(results: dict[str, Results]) -> None:
    """In fp32; so the test above would notice."""
    compared = [case for case in RESUMES if agree(case.case, case.is_frozen)]
    faulty = [case for case in compared if parted(results[OLD], f"legacy {case}")]
    fp32 = [case for case in compared if case.case.dtype == "fp32"]
    assert faulty == [case for case in fp32 if case.is_frozen or case.case.optimizer == "ZeroOneAdam"]


def parted(results: Results, case: str) -> list[str]:
    first, second = (rank[case] for rank in results)
    return [name for name in first if bits(first[name]) != bits(second[name])]
