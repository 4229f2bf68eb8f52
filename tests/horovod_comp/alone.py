"""A job that trains twice, with gradwire and without, and prints how far apart the two ended. For test_alone.py."""

from __future__ import annotations

import faulthandler
import sys

import horovod.torch as hvd
import torch
from gradwire.horovod_comp import TopK
from torch import nn


def trained(compression: object) -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Linear(40, 50)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1),
        named_parameters=net.named_parameters(),
        compression=compression,
    )
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
    return net.weight.detach()


def main() -> None:
    hvd.init()
    compression = TopK(ratio=0.01)
    difference = (trained(compression) - trained(hvd.Compression.none)).abs().max()
    call = hvd.allreduce(torch.ones(50, 50), name="x", compression=compression)
    print(f"ranks {hvd.size()}, difference {difference}, call {call.unique().tolist()}")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(60.0, exit=True)
    sys.exit(main())
