"""Train a small GPT by DeepSpeed: deepspeed --num_gpus 2 examples/deepspeed_gpt.py --config examples/ds_onebit.json"""

from __future__ import annotations

import time
from typing import Any

import deepspeed
import gpt
import gradwire.deepspeed_comp  # noqa: F401 - "type": "OneBitAdam" is known again
import torch
from gradwire.backends.statistics import Statistics, StepStatistics


def main() -> None:
    parser = gpt.make_parser(__doc__)
    parser.add_argument("--config", "--deepspeed_config", required=True, help="a ds.json without ZeRO")
    parser.add_argument("--local_rank", type=int, help="the launcher says so; not needed here")
    options = parser.parse_args()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # takes minutes to compile, and is for inference

    torch.manual_seed(options.seed)
    model = gpt.GPT()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config=options.config,
        lr_scheduler=lambda optimizer: gpt.make_schedule(optimizer, options.steps),
    )
    text = gpt.Text(engine.global_rank, options.seed)
    report = gpt.Report(options.report, main=engine.global_rank == 0)
    traffic = Traffic(engine)

    for step in range(1, options.steps + 1):
        loss = engine(text.batch())
        engine.backward(loss)
        engine.step()
        report.step(step, loss.item(), traffic.after(step))

    report.finish(gpt.held_out_loss(model, text))
    torch.distributed.destroy_process_group()


class Traffic:
    """What a rank sends: in the engine's all-reduces of gradients, and as a 1-bit optimizer's momenta."""

    def __init__(self, engine: Any) -> None:
        self._optimizer = engine.basic_optimizer
        self._ring = 2 * (engine.dp_world_size - 1) / engine.dp_world_size
        self._itemsize = engine.communication_data_type.itemsize
        self._parameters = list(engine.module.parameters())
        self._dense = StepStatistics()
        self._reduce = engine.allreduce_bucket
        engine.allreduce_bucket = self._counted

    def _counted(self, bucket: list[torch.Tensor], *others: Any, **named: Any) -> torch.Tensor:
        started = time.perf_counter()
        reduced = self._reduce(bucket, *others, **named)
        seconds = time.perf_counter() - started
        self._dense += StepStatistics(
            sent_bytes=round(self._ring * self._itemsize * reduced.numel()), wait_seconds=seconds
        )
        return reduced

    def after(self, steps: int) -> Statistics:
        """The totals of so many steps."""
        elements = sum(p.numel() for p in self._parameters)
        nbytes = sum(p.nbytes for p in self._parameters)
        momenta = getattr(self._optimizer, "statistics", Statistics()).total
        total = StepStatistics(
            raw_bytes=round(steps * self._ring * nbytes),
            fp16_bytes=round(steps * self._ring * 2 * elements),
            sent_bytes=self._dense.sent_bytes + momenta.sent_bytes,
            codec_seconds=momenta.codec_seconds,
            wait_seconds=self._dense.wait_seconds + momenta.wait_seconds,
        )
        return Statistics(total=total)


if __name__ == "__main__":
    main()
