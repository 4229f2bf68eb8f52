"""Train a small GPT by DDP, in parts: torchrun --nproc-per-node 2 examples/ddp_topk.py --folder out

Run it again, and it goes on from where it ended: parameters, optimizer, and what compression still owes.
"""

from __future__ import annotations

from pathlib import Path

import gpt
import torch
import torch.distributed as dist
from gradwire import TopK
from gradwire.backends import ddp
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = gpt.make_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoint, which has a file per rank")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    report = gpt.Report(options.report, main=dist.get_rank() == 0)

    net = gpt.GPT()
    model = DistributedDataParallel(net)
    compression = ddp.compress(model, TopK(ratio=0.01))
    optimizer = gpt.make_optimizer(net)

    parts = {"model": net, "optimizer": optimizer, "compression": compression}
    file = options.folder / f"rank{dist.get_rank()}.pt"
    if file.exists():
        states = torch.load(file, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(states[name])
    done = compression.statistics.steps
    text = gpt.Text(dist.get_rank(), options.seed + done)

    for step in range(done + 1, done + options.steps + 1):
        optimizer.zero_grad()
        loss = model(text.batch())
        loss.backward()
        optimizer.step()
        report.step(step, loss.item(), compression.statistics)

    options.folder.mkdir(parents=True, exist_ok=True)
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    report.finish(gpt.held_out_loss(net, text))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
