"""Every training of the table on one release of DeepSpeed; parameters go to a file per rank.

    torchrun --nproc-per-node 2 ranks.py RELEASE RESULTS CHECKPOINTS

PYTHONPATH says which release it is, and where tests/support lies. The old release writes checkpoints; both go on from
them, ours also without `legacy`.
"""

from __future__ import annotations

import os
import sys
import warnings
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


def trainings(**options: bool) -> dict[str, cases.Parameters]:
    results = {f"legacy {case}": cases.run(case, initialize, **options) for case in cases.CASES}
    for case in cases.RESUMES:
        if OLD:
            cases.save(case, CHECKPOINTS / str(case), initialize)
        results[f"legacy {case}"] = cases.resume(case, CHECKPOINTS / str(case), initialize, **options)
    return results


def our_trainings() -> dict[str, cases.Parameters]:
    import gradwire.deepspeed_comp  # noqa: F401 - registers the optimizers

    warnings.filterwarnings("ignore", "DeepSpeed .* divides gradients", UserWarning)
    results = trainings(legacy=True)
    for case in cases.RESUMES:
        results[f"default {case}"] = cases.resume(case, CHECKPOINTS / str(case), initialize)
    return results


def main() -> None:
    assert deepspeed.__version__ == RELEASE, f"{deepspeed.__file__} is {deepspeed.__version__}"
    torch.set_num_threads(1)
    for_cpu()
    deepspeed.init_distributed(dist_backend="gloo")
    torch.save(trainings() if OLD else our_trainings(), RESULTS / f"{RELEASE}.{os.environ['RANK']}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
