"""Train a small GPT with Horovod: horovodrun -np 2 python examples/horovod_gpt.py --compression topk:ratio=0.01"""

from __future__ import annotations

import gpt
import horovod.torch as hvd
import torch
from gradwire import parse_spec
from gradwire.horovod_comp import Compression


def main() -> None:
    options = gpt.parse_options(__doc__)
    hvd.init()
    torch.manual_seed(options.seed)
    text = gpt.Text(hvd.rank(), options.seed)
    report = gpt.Report(options.report, main=hvd.rank() == 0)

    model = gpt.GPT()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    compression = Compression(parse_spec(options.compression), seed=options.seed)
    optimizer = hvd.DistributedOptimizer(
        gpt.make_optimizer(model),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    schedule = gpt.make_schedule(optimizer, options.steps)

    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        loss = model.loss(text.batch())
        loss.backward()
        optimizer.step()
        schedule.step()
        report.step(step, loss.item(), compression.statistics)

    report.finish(gpt.held_out_loss(model, text))


if __name__ == "__main__":
    main()
