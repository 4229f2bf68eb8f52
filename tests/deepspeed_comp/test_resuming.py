"""DeepSpeed's own checkpoint calls carry everything: 10 steps, a save, and 10 more in new processes make 20."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

RANKS = Path(__file__).with_name("resuming.py")
PRECISIONS = ["fp32", "bf16"]
OPTIMIZERS = [f"{name}-{precision}" for name in ("OneBitAdam", "OneBitLamb", "ZeroOneAdam") for precision in PRECISIONS]
COMPRESSED = [f"topk-zero{stage}-{precision}" for stage in range(4) for precision in PRECISIONS]
AT_STAGE_0 = [*OPTIMIZERS, *COMPRESSED[: len(PRECISIONS)]]


class Runs:
    """Trains in real processes, all cases at once; each kind of run once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rest = cache(self._rest)
        self.whole = self._run("whole", 2)

    def _rest(self, world_size: int) -> list[dict[str, Any]]:
        return self._run("rest", world_size)

    def _run(self, action: str, world_size: int) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
        with (self.folder / f"{action}.{world_size}.log").open("w") as log:
            subprocess.run(
                [*command, str(RANKS), action, str(self.folder)],
                check=True,
                timeout=300,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
            )
        files = [self.folder / f"{action}.{world_size}.{rank}.pt" for rank in range(world_size)]
        return [torch.load(file, weights_only=True) for file in files]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("resuming"))


@pytest.mark.parametrize("case", [*OPTIMIZERS, *COMPRESSED])
def test_the_same_number_of_ranks_goes_on_bit_for_bit(runs: Runs, case: str) -> None:
    for whole, rest in zip(runs.whole, runs.rest(2), strict=True):
        assert rest[case]["losses"] == whole[case]["losses"]
        assert rest[case]["parameters"].equal(whole[case]["parameters"])


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("case", AT_STAGE_0)
def test_another_number_of_ranks_goes_on_learning(runs: Runs, case: str, world_size: int) -> None:
    """The steps see the same samples, so the losses stay close to those of the run that went on."""
    whole, rest = runs.whole[0][case]["losses"], runs.rest(world_size)[0][case]["losses"]
    assert sum(rest) == pytest.approx(sum(whole), rel=0.1)


@pytest.mark.parametrize("world_size", [1, 3])
def test_one_line_says_that_residuals_were_redistributed(runs: Runs, world_size: int) -> None:
    runs.rest(world_size)
    text = (runs.folder / f"rest.{world_size}.log").read_text()
    assert text.count(f"the checkpoint is of 2 ranks, this job has {world_size}") == len(AT_STAGE_0)
