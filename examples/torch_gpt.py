"""Train a small GPT by DDP: torchrun --nproc-per-node 2 examples/torch_gpt.py --compression topk:ratio=0.01"""

from __future__ import annotations

import gpt
import torch
import torch.distributed as dist
from gradwire import parse_spec
from gradwire.backends import ddp
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    options = gpt.parse_options(__doc__)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    text = gpt.Text(dist.get_rank(), options.seed)
    report = gpt.Report(options.report, main=dist.get_rank() == 0)

    net = gpt.GPT()
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    compression = ddp.compress(model, parse_spec(options.compression), seed=options.seed)
    optimizer = gpt.make_optimizer(net)
    schedule = gpt.make_schedule(optimizer, options.steps)

    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        loss = model(text.batch())
        loss.backward()
        optimizer.step()
        schedule.step()
        report.step(step, loss.item(), compression.statistics)

    report.finish(gpt.held_out_loss(net, text))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
