"""Train a small GPT without Horovod: torchrun --nproc-per-node 2 examples/torch_gpt.py --compression topk:ratio=0.01"""

from __future__ import annotations

import gpt
import torch
import torch.distributed as dist
from gradwire import TensorMeta, parse_spec
from gradwire.backends import GradientReducer, TorchTransport


def main() -> None:
    options = gpt.parse_options(__doc__)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    text = gpt.Text(dist.get_rank(), options.seed)
    report = gpt.Report(options.report, main=dist.get_rank() == 0)

    model = gpt.GPT()  # the same seed gives every rank the same parameters
    optimizer = gpt.make_optimizer(model)
    parameters = dict(reversed(list(model.named_parameters())))  # backward produces the last layer's gradients first
    reducer = GradientReducer(parse_spec(options.compression), TorchTransport(), seed=options.seed)
    reducer.register([TensorMeta(name=n, shape=tuple(p.shape), dtype=p.dtype) for n, p in parameters.items()])
    for name, parameter in parameters.items():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: reducer.ready(name, p.grad))
    schedule = gpt.make_schedule(optimizer, options.steps)

    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        loss = model.loss(text.batch())
        loss.backward()
        for name, parameter in parameters.items():
            parameter.grad = reducer.wait(name)
        optimizer.step()
        schedule.step()
        report.step(step, loss.item(), reducer.statistics)

    report.finish(gpt.held_out_loss(model, text))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
