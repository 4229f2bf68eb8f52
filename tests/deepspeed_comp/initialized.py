"""Print what deepspeed.initialize makes of each of a list of configurations. Started by test_registration.py."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import deepspeed
import gradwire.deepspeed_comp
import torch
from gradwire.deepspeed_comp.gradients.attach import attachment_of
from torch.distributed import HashStore, init_process_group  # pyright: ignore[reportPrivateImportUsage] - documented

ENVIRONMENT = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def attempt(config: dict[str, Any]) -> str:
    net = torch.nn.Linear(64, 64)
    try:
        engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    attached = f" and {type(attachment_of(engine)).__name__}" if "gradient_compression" in config else ""
    return f"{type(engine.optimizer).__name__}{attached}"


def main() -> None:
    # an operator for inference, which would be compiled for minutes
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    gradwire.deepspeed_comp.register()
    os.environ |= ENVIRONMENT
    init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    configs = json.loads(sys.argv[1])
    outcomes = [attempt({"train_batch_size": 1, **config}) for config in configs]
    sys.stdout.write("\n" + json.dumps(outcomes))


if __name__ == "__main__":
    main()
