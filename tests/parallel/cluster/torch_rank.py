"""A rank of torch.distributed, whoever started it: where it runs, and what an all-reduce gives there."""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

if "OMPI_COMM_WORLD_RANK" in os.environ:  # mpirun says nothing that torch understands
    os.environ |= {
        "RANK": os.environ["OMPI_COMM_WORLD_RANK"],
        "LOCAL_RANK": os.environ["OMPI_COMM_WORLD_LOCAL_RANK"],
        "WORLD_SIZE": os.environ["OMPI_COMM_WORLD_SIZE"],
        "MASTER_ADDR": os.environ["GRADWIRE_CLUSTER_MASTER"],
        "MASTER_PORT": "29500",
    }
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
total = torch.full((1000,), 10.0**rank)
dist.all_reduce(total)
(Path(sys.argv[1]) / f"rank{rank}").write_text(
    f"{socket.gethostname()} {os.environ['LOCAL_RANK']} {dist.get_world_size()} {set(total.tolist())}"
)
dist.destroy_process_group()
