"""A rank of Horovod: where it runs, and what an all-reduce gives there."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.full((1000,), 10.0 ** hvd.rank()), op=hvd.Sum, name="total")
(Path(sys.argv[1]) / f"rank{hvd.rank()}").write_text(
    f"{socket.gethostname()} {hvd.local_rank()} {hvd.size()} {set(total.tolist())}"
)
