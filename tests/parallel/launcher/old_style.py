"""Run by `gradwire deepspeed --num_gpus 2 old_style.py --config ds.json`: as scripts were written for DeepSpeed 0.19.6.

It knows nothing of gradwire. Its import paths, arguments and attributes were usual then. Every rank says in a file of
its own what came of it.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.comm.nccl import NcclBackend
from deepspeed.runtime.fp16.onebit.adam import OnebitAdam
from deepspeed.runtime.fp16.onebit.lamb import OnebitLamb
from deepspeed.runtime.fp16.onebit.zoadam import ZeroOneAdam

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled for minutes, on CPUs only
EXTRA = {OnebitAdam: {"freeze_step": 2}, OnebitLamb: {"freeze_step": 2}, ZeroOneAdam: {"var_freeze_step": 2}}


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Tanh(), torch.nn.Linear(48, 5))


def train(engine: Any) -> list[float]:
    batch = torch.randn(16, 64, generator=torch.Generator().manual_seed(engine.global_rank))
    losses = []
    for _ in range(6):
        loss = engine(batch).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def say(*words: object) -> None:
    with Path(f"rank{os.environ['RANK']}.txt").open("a") as file:
        print(*words, file=file)


def check_backend(local_rank: int) -> None:
    """As DeepSpeed's own test of its backend did it."""
    backend = NcclBackend()
    buffer = torch.full((1024,), 1.0 - 2.0 * backend.rank)
    worker_error, server_error = torch.zeros(1024), torch.zeros(1024 // backend.size)
    result = backend.compressed_allreduce(buffer, worker_error, server_error, local_rank)
    say("backend", backend.size, result.abs().max().item())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    args = deepspeed.add_config_arguments(parser).parse_args()

    model = make_model()
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    losses = train(engine)
    say("json", isinstance(optimizer, OnebitAdam), optimizer.adam_freeze_key, losses[-1] < losses[0])

    for kind, extra in EXTRA.items():
        model = make_model()
        client = kind(model.parameters(), lr=1e-2, cuda_aware=False, comm_backend_name="nccl", **extra)
        config = {"train_micro_batch_size_per_gpu": 16}
        engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=client, config=config)
        losses = train(engine)
        say("client", kind.__name__, optimizer is client, losses[-1] < losses[0])
    check_backend(args.local_rank)
    torch.distributed.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads let go of the last tensors later; PyTorch aborts if Python ends before


if __name__ == "__main__":
    main()
