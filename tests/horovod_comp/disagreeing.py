"""A job in which the last rank compresses in another way than the others. For test_disagreeing.py."""

from __future__ import annotations

import faulthandler
import sys

import horovod.torch as hvd
import torch
from gradwire.horovod_comp import TopK
from torch import nn


def main() -> None:
    hvd.init()
    net = nn.Linear(40, 50)
    last = hvd.rank() == hvd.size() - 1
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1),
        named_parameters=net.named_parameters(),
        compression=TopK(ratio=0.02 if last else 0.01),
    )
    net(torch.ones(1, 40)).sum().backward()
    optimizer.step()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(60.0, exit=True)
    sys.exit(main())
