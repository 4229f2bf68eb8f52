"""A rank of `launch/versions`: `python -m gradwire.launch.versions_ranks REPORT`, under torchrun."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from .. import deepspeed_comp
from ..deepspeed_comp.registration import BLOCK
from .versions import ALONE

__all__ = ["CASES"]

STEPS = 12

#: name, and what of ds.json it is about
CASES: dict[str, dict[str, Any]] = {
    "OneBitAdam": {"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-2, "freeze_step": 4}}},
    "OneBitLamb": {"optimizer": {"type": "OneBitLamb", "params": {"lr": 1e-2, "freeze_step": 4}}},
    "ZeroOneAdam": {"optimizer": {"type": "ZeroOneAdam", "params": {"lr": 1e-2, "var_freeze_step": 4}}},
    **{
        f"top-k, ZeRO {stage}": {
            # an optimizer that no release compiles anything for
            "optimizer": {"type": "SGD", "params": {"lr": 0.3}},
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "gradient_compression": {"type": "topk", "ratio": 0.1, "min_numel": 64},
        }
        for stage in range(4)
    },
}


def main(report: Path) -> None:
    """Run all cases; rank 0 writes what became of each."""
    torch.set_num_threads(1)
    # an operator for inference, which every release would compile, in a folder that all share
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    deepspeed_comp.register(replace=True)
    lines = {name: verdict(case) for name, case in CASES.items()}
    if dist.get_rank() == 0:
        report.write_text(json.dumps(lines))
    dist.destroy_process_group()


def verdict(case: dict[str, Any]) -> str:
    """`ok`, what is wrong, or that DeepSpeed cannot do it without gradwire either."""
    plain = {key: value for key, value in case.items() if key != BLOCK}
    alone = attempt(plain) if plain != case else "ok"
    return attempt(case) if alone == "ok" else f"{ALONE}{alone}"


def attempt(case: dict[str, Any]) -> str:
    """`ok`, or what is wrong; as long on all ranks."""
    try:
        mine = check(case)
    except Exception as error:
        traceback.print_exc()
        mine = f"{type(error).__name__}: {error}".splitlines()[0]
    fine = torch.tensor(int(mine == "ok"))
    dist.all_reduce(fine, op=dist.ReduceOp.MIN)
    return "failed on another rank" if mine == "ok" and not fine else mine


def check(case: dict[str, Any]) -> str:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
    config = {"train_micro_batch_size_per_gpu": 8, "steps_per_print": 10**9, **case}
    engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    inputs = torch.randn(8, 16, generator=generator)
    losses = [step(engine, inputs) for _ in range(STEPS)]
    if not losses[-1] < 0.9 * losses[0]:
        return f"loss went from {losses[0]:.3f} to {losses[-1]:.3f}"
    return "ok" if replicas_agree(engine) else "ranks hold different parameters"


def step(engine: Any, inputs: torch.Tensor) -> float:
    loss = (engine(inputs) - inputs[:, :4]).square().mean()
    engine.backward(loss)
    engine.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return float(mean)


def replicas_agree(engine: Any) -> bool:
    with deepspeed.zero.GatheredParameters(
        list(engine.module.parameters()), enabled=engine.zero_optimization_stage() == 3
    ):
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in engine.module.parameters()])
    all_flat = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(all_flat, flat)
    return all(torch.equal(flat, other) for other in all_flat)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
