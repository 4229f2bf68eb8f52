"""Run by torchrun: every ds.json and every Python snippet of a document, one after the other, on real ranks."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
from support.deepspeed_standins import no_shared_memory_op

STEPS = 3


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


def train(config: dict[str, Any]) -> None:
    """As it stands, but frozen at once, and without the operators that DeepSpeed's own Adam would compile."""
    params = config["optimizer"]["params"]
    params |= {key: 1 for key in ("freeze_step", "var_freeze_step") if key in params}
    if config["optimizer"]["type"] in {"Adam", "AdamW"}:
        params["torch_adam"] = True
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    dtype = torch.bfloat16 if "bf16" in config else torch.float32
    batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(engine.global_rank)).to(dtype)
    losses = []
    for _ in range(STEPS * config.get("gradient_accumulation_steps", 1)):
        loss = engine(batch).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses


def main(document: Path) -> None:
    import gradwire.deepspeed_comp  # noqa: F401 - the document's one line

    torch.set_num_threads(1)
    no_shared_memory_op()
    for block in blocks(document, "json"):
        train(json.loads(block))
    names: dict[str, Any] = {}
    for snippet in blocks(document, "python"):
        exec(compile(snippet, str(document), "exec"), names)  # noqa: S102 - the document's own code
    print("all snippets ran", flush=True)
    torch.distributed.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads let go of the last tensors later; PyTorch aborts if Python ends before


if __name__ == "__main__":
    main(Path(sys.argv[1]))
