"""A job in which the last rank goes into hvd.join() while the others still exchange. Started by test_join.py."""

from __future__ import annotations

import faulthandler
import sys

import horovod.torch as hvd
import torch
from gradwire.backends.transport import Work
from gradwire.horovod_comp.transport import HorovodTransport, JoinError

LIMIT = 20.0
#: exchanges before, which fill Horovod's response cache
WARM_UP = 21


def start(transport: HorovodTransport) -> dict[str, Work]:
    """One of each kind, all under way at once."""
    ranks = transport.world_size
    data, sizes = torch.ones(8 * ranks, dtype=torch.uint8), [8] * ranks
    return {
        "all_reduce": transport.all_reduce(torch.ones(8), "gradients"),
        "all_gather": transport.all_gather(data[:8], sizes, "gradients"),
        "all_to_all": transport.all_to_all(data, sizes, sizes, "gradients"),
        "broadcast": transport.broadcast(data, 0, "gradients"),
        "all_reduce of another": transport.all_reduce(torch.ones(1), "another"),
    }


def outcome(work: Work) -> str:
    """The sum of what came, or the error's text."""
    try:
        return f"{work.wait(LIMIT).sum().item():g}"
    except JoinError as error:
        return str(error)


def main() -> None:
    faulthandler.dump_traceback_later(3 * LIMIT, exit=True)
    hvd.init()
    transport = HorovodTransport()
    for _ in range(WARM_UP):
        for work in start(transport).values():
            work.wait(LIMIT)
    if transport.rank < transport.world_size - 1:
        for kind, work in start(transport).items():
            sys.stdout.write(f"outcome on rank {transport.rank}: {kind}: {outcome(work)}\n")
    hvd.join()


if __name__ == "__main__":
    main()
