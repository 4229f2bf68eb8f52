"""Run by torchrun: what the example counts, beside what torch.distributed was really handed, step by step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import gradwire
import torch
import torch.distributed as dist

ROOT = Path(gradwire.__file__).parent
sys.path.insert(0, str(ROOT / "examples"))
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled for minutes, on CPUs only
STEPS = 4
#: ranks agree once about names and shapes, which belongs to no step
FINGERPRINT = 32


class Wire:
    """Bytes that this rank sends: a sum as a ring, a gather to all others, pieces to their owners."""

    def __init__(self) -> None:
        self.sent = 0
        world = dist.get_world_size()
        self._listen("all_reduce", lambda tensor, **_: 2 * (world - 1) * sized(tensor) // world)
        self._listen("all_gather", lambda slots, tensor, **_: (world - 1) * sized(tensor))
        self._listen("all_to_all_single", lambda output, tensor, into, sizes, **_: sum(sizes) - sizes[dist.get_rank()])

    def _listen(self, name: str, size: Callable[..., int]) -> None:
        function = getattr(dist, name)

        def listening(*args: Any, **kwargs: Any) -> Any:
            self.sent += size(*args, **kwargs)
            return function(*args, **kwargs)

        setattr(dist, name, listening)


def sized(tensor: torch.Tensor) -> int:
    """The engine also compares a number in every step."""
    return 0 if tensor.numel() == 1 or tensor.nbytes == FINGERPRINT else tensor.nbytes


def compare(config: dict[str, Any], wire: Wire) -> list[tuple[int, int]]:
    """After every step: counted and sent."""
    import gpt  # pyright: ignore[reportMissingImports] - of the examples
    from deepspeed_gpt import Traffic  # pyright: ignore[reportMissingImports]

    torch.manual_seed(1)
    model = gpt.GPT(width=64, depth=1)
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    traffic, text = Traffic(engine), gpt.Text(engine.global_rank, 0)
    wire.sent, pairs = 0, []
    for step in range(1, STEPS + 1):
        engine.backward(engine(text.batch()))
        engine.step()
        pairs.append((traffic.after(step).total.sent_bytes, wire.sent))
    return pairs


def main() -> None:
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    wire, results = Wire(), {}
    for name in ("ds_adam", "ds_onebit"):
        config = json.loads((ROOT / "examples" / f"{name}.json").read_text())
        config["optimizer"]["params"] |= {"freeze_step": 2} if name == "ds_onebit" else {}
        results[name] = compare(config, wire)
    Path(f"traffic{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads let go of the last tensors later; PyTorch aborts if Python ends before


if __name__ == "__main__":
    main()
