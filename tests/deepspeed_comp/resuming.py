"""Run by torchrun: trainings that are saved half way, and trainings that go on from there in processes of their own.

    torchrun --nproc-per-node N resuming.py ACTION FOLDER

`whole` trains, saves, and trains on; `rest` loads and trains on. Both write final parameters and losses to a file per
rank. Whatever the number of ranks, a step sees the same samples.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import deepspeed
import gradwire.deepspeed_comp  # noqa: F401 - registers optimizers and the block of ds.json
import torch
import torch.distributed as dist

HALF = 10
SAMPLES = 12
COMPRESSION = {"gradient_compression": {"type": "topk", "ratio": 0.05, "min_numel": 64}}
ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}}
OPTIMIZERS = {
    "OneBitAdam": {"lr": 1e-3, "freeze_step": 6},
    "OneBitLamb": {"lr": 1e-2, "freeze_step": 6},
    "ZeroOneAdam": {"lr": 1e-3, "var_freeze_step": 6, "local_step_scaler": 2, "local_step_clipper": 4},
}
PRECISIONS: dict[str, dict[str, Any]] = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}}
#: what of ds.json a case is about, by name
CASES: dict[str, dict[str, Any]] = {
    **{
        f"{kind}-{precision}": {"optimizer": {"type": kind, "params": params}, **PRECISIONS[precision]}
        for (kind, params), precision in product(OPTIMIZERS.items(), PRECISIONS)
    },
    **{
        f"topk-zero{stage}-{precision}": {
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            **ADAM,
            **COMPRESSION,
            **PRECISIONS[precision],
        }
        for stage, precision in product(range(4), PRECISIONS)
    },
}


def engine(case: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 80), torch.nn.Tanh(), torch.nn.Linear(80, 4))
    config = {
        "train_micro_batch_size_per_gpu": SAMPLES // dist.get_world_size(),
        "steps_per_print": 1 << 30,
        **case,
    }
    return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]


def step(host: Any, number: int) -> float:
    x = torch.randn(SAMPLES, 24, generator=torch.Generator().manual_seed(number))
    y = torch.stack([x[:, :8].sum(1).sin(), x[:, 3] * x[:, 5], x[:, 1], x.square().mean(1)], 1)
    x, y = (tensor.chunk(dist.get_world_size())[dist.get_rank()] for tensor in (x, y))
    loss = (host(x.to(next(host.module.parameters()).dtype)).float() - y).square().mean()
    host.backward(loss)
    host.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def parameters(host: Any) -> torch.Tensor:
    tensors = list(host.module.parameters())
    with deepspeed.zero.GatheredParameters(tensors, enabled=host.zero_optimization_stage() == 3):
        return torch.cat([tensor.detach().float().reshape(-1) for tensor in tensors])


def whole(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    host = engine(case)
    for number in range(HALF):
        step(host, number)
    host.save_checkpoint(str(folder))
    losses = [step(host, number) for number in range(HALF, 2 * HALF)]
    return {"parameters": parameters(host), "losses": losses}


def rest(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    host = engine(case)
    path, _ = host.load_checkpoint(str(folder))
    assert path is not None
    losses = [step(host, number) for number in range(HALF, 2 * HALF)]
    return {"parameters": parameters(host), "losses": losses}


def main(action: str, folder: Path) -> None:
    torch.set_num_threads(1)
    # an operator for inference, which would be compiled for minutes
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    world_size = dist.get_world_size()
    run = {"whole": whole, "rest": rest}[action]
    # DeepSpeed itself loads a ZeRO checkpoint at the same number of ranks only
    chosen = {
        name: case
        for name, case in CASES.items()
        if world_size == 2 or case.get("zero_optimization", {}).get("stage", 0) == 0
    }
    results = {name: run(case, folder / name) for name, case in chosen.items()}
    torch.save(results, folder / f"{action}.{world_size}.{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
