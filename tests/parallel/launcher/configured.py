"""Run by `deepspeed --num_gpus 2 configured.py --deepspeed --deepspeed_config ds.json`: a script of today.

Trains what ds.json names, and the same optimizers in other letter cases. Results go into a file per rank beside
ds.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import deepspeed
import gradwire.deepspeed_comp  # noqa: F401 - the one line
import torch
import torch.distributed as dist

STEPS = 8
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled for minutes, on CPUs only


def train(**settings: Any) -> dict[str, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Tanh(), torch.nn.Linear(48, 5))
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), **settings)[0]
    losses, averaged, equal = [], [], []
    batch = torch.randn(16, 64, generator=torch.Generator().manual_seed(engine.global_rank))
    for _ in range(STEPS):
        averaged.append(engine.enable_backward_allreduce)
        loss = engine(batch).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        equal.append(same_on_all_ranks(torch.cat([p.detach().view(-1) for p in model.parameters()])))
    sent = engine.optimizer.statistics.total.sent_bytes
    return {"losses": losses, "averaged": averaged, "equal": equal, "sent": sent, "raw": STEPS * count(model)}


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def same_on_all_ranks(flat: torch.Tensor) -> bool:
    others = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(others, flat)
    return all(torch.equal(other.view(torch.int32), flat.view(torch.int32)) for other in others)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, required=True)
    options = deepspeed.add_config_arguments(parser).parse_args()
    assert options.deepspeed
    folder = Path(options.deepspeed_config).parent
    results = {"ds.json": train(args=options)}
    for name in ("onebitadam", "ONEBITADAM", "OnebitAdam"):
        config = json.loads((folder / "ds.json").read_text())
        config["optimizer"]["type"] = name
        results[name] = train(config=config)
    results["ranks"] = {"world": dist.get_world_size(), "backend": dist.get_backend(), "local": options.local_rank}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads let go of the last tensors later; PyTorch aborts if Python ends before


if __name__ == "__main__":
    main()
