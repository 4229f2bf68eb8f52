"""Trainings that two releases of DeepSpeed are compared by: the table, and how one of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch

__all__ = ["CASES", "RESUMES", "Case", "Parameters", "Resume", "config", "model", "resume", "save", "train"]

SIZES = (11, 23, 5)
BATCH = 6
#: large, because a variance that is frozen after one step is no variance, and numbers must not grow out of bounds
EPS = 1e-3
DTYPES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 20}},
}
#: optimizer -> its name for the step that freezes the variance, and what makes it do all it can within 50 steps
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "OneBitAdam": ("freeze_step", {}),
    "OneBitLamb": ("freeze_step", {}),
    "ZeroOneAdam": ("var_freeze_step", {"var_update_scaler": 2, "local_step_scaler": 5, "local_step_clipper": 4}),
}
TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Parameters = dict[str, torch.Tensor]
Initialize = Callable[[torch.nn.Module, dict[str, Any]], Any]


@dataclass(frozen=True)
class Case:
    """One training."""

    optimizer: str
    dtype: str
    accumulation: int = 1
    clipping: float = 0.0
    steps: int = 50
    params: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        words = [f"{key}={value}" for key, value in self.params.items() if key not in ("lr", "eps")]
        return "-".join([self.optimizer, self.dtype, *words, f"gas={self.accumulation}", f"clip={self.clipping:g}"])


def _params(optimizer: str, freeze: int, **more: Any) -> dict[str, Any]:
    key, shared = OPTIMIZERS[optimizer]
    return {"lr": 1e-3, "eps": EPS, key: freeze, **shared, **more}


def _cases(optimizer: str) -> Iterator[Case]:
    for dtype, freeze, decay, gas, clip in product(DTYPES, (1, 2, 10), (0.0, 0.01), (1, 4), (0.0, 0.05)):
        yield Case(optimizer, dtype, gas, clip, params=_params(optimizer, freeze, weight_decay=decay))


CASES: list[Case] = [case for optimizer in OPTIMIZERS for case in _cases(optimizer)]


@dataclass(frozen=True)
class Resume:
    """A training that is saved after some steps, and goes on in a new engine from there."""

    case: Case
    saved_after: int
    steps_after: int = 10

    @property
    def is_frozen(self) -> bool:
        """Whether the variance is, by the time it is saved."""
        return self.saved_after >= self.case.params[OPTIMIZERS[self.case.optimizer][0]]

    def __str__(self) -> str:
        return f"{self.case}-saved_after={self.saved_after}"


RESUMES: list[Resume] = [
    Resume(Case(optimizer, dtype, params=_params(optimizer, 10)), saved)
    for optimizer in OPTIMIZERS
    for dtype in DTYPES
    for saved in (4, 16)
]


def config(case: Case, **params: Any) -> dict[str, Any]:
    """The ds.json of a case; `params` join the optimizer's."""
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": case.accumulation,
        "gradient_clipping": case.clipping,
        "steps_per_print": 1 << 30,
        "optimizer": {"type": case.optimizer, "params": case.params | params},
        **DTYPES[case.dtype],
    }


def model() -> torch.nn.Module:
    """Odd sizes, so that everything is padded; equal in every run."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(*SIZES[:2]), torch.nn.Tanh(), torch.nn.Linear(*SIZES[1:])]
    return torch.nn.Sequential(*layers)


def train(engine: Any, case: Case, first: int, steps: int) -> None:
    """Micro batches differ by rank and step."""
    for step in range(first, first + steps):
        for micro in range(case.accumulation):
            seed = (step * case.accumulation + micro) * 64 + engine.global_rank
            batch = torch.randn(BATCH, SIZES[0], generator=torch.Generator().manual_seed(seed))
            output = engine(batch.to(TORCH_DTYPES[case.dtype])).float()
            engine.backward((output.tanh() - batch[:, : SIZES[-1]].tanh()).square().mean())
            engine.step()


def parameters(engine: Any) -> Parameters:
    return {name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()}


def run(case: Case, initialize: Initialize, **params: Any) -> Parameters:
    """Parameters after all steps."""
    engine = initialize(model(), config(case, **params))
    train(engine, case, 0, case.steps)
    return parameters(engine)


def save(resume: Resume, folder: Path, initialize: Initialize, **params: Any) -> None:
    """Train up to the checkpoint, and write it."""
    engine = initialize(model(), config(resume.case, **params))
    train(engine, resume.case, 0, resume.saved_after)
    engine.save_checkpoint(str(folder), tag="saved")


def resume(resume: Resume, folder: Path, initialize: Initialize, **params: Any) -> Parameters:
    """Load the checkpoint into a new engine, and train on; parameters after all steps."""
    engine = initialize(model(), config(resume.case, **params))
    engine.load_checkpoint(str(folder), tag="saved")
    train(engine, resume.case, resume.saved_after, resume.steps_after)
    return parameters(engine)
