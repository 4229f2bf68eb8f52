"""Run by torchrun: every training of the table on one release of DeepSpeed; parameters go to a file per rank.

    torchrun --nproc-per-node 2 parity.py RELEASE RESULTS CHECKPOINTS

With PYTHONPATH saying which release it is, and where tests/support lies. The old release writes the checkpoints, and
both go on from them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from support import deepspeed_cases as cases
from support.deepspeed_standins import for_cpu

RELEASE, RESULTS, CHECKPOINTS = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
OLD = RELEASE == "0.19.6"


def initialize(model: torch.nn.Module, config: dict[str, Any]) -> Any:
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def main() -> None:
    assert deepspeed.__version__ == RELEASE, f"{deepspeed.__file__} is {deepspeed.__version__}"
    torch.set_num_threads(1)
    for_cpu()
    deepspeed.init_distributed(dist_backend="gloo")
    options: dict[str, Any] = {}
    if not OLD:
        import gradwire.deepspeed_comp  # noqa: F401 - registers the optimizers

        options = {"legacy": True}
    results = {str(case): cases.run(case, initialize, **options) for case in cases.CASES}
    for case in cases.RESUMES:
        folder = CHECKPOINTS / str(case)
        if OLD:
            cases.save(case, folder, initialize)
        results[str(case)] = cases.resume(case, folder, initialize, **options)
    torch.save(results, RESULTS / f"{RELEASE}.{os.environ['RANK']}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
