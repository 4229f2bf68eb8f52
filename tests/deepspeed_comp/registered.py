"""Print what gradwire.deepspeed_comp changes in DeepSpeed and in torch.optim. Started by test_registration.py."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path

import deepspeed
import deepspeed.ops.adam
import torch
from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
from deepspeed.runtime.engine import DeepSpeedEngine


def names() -> dict[str, object]:
    """Every name in a module of DeepSpeed or in torch.optim, and every name in a class of theirs."""
    found: dict[str, object] = {}
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] == "deepspeed"] + [torch.optim]:
        for name, value in vars(module).items():
            found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type) and value.__module__.startswith("deepspeed"):
                found |= {f"{value.__module__}.{value.__qualname__}.{key}": item for key, item in vars(value).items()}
    return found


def files() -> dict[str, str]:
    root = Path(next(iter(deepspeed.__path__)))
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names that stand for another object, or for none."""
    return sorted(name for name in before if before[name] is not after.get(name, before))


def added(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return sorted(name for name in after.keys() - before.keys() if not name.rpartition(".")[2].startswith("__"))


def main() -> None:
    constructor, optimizers, list_ = DeepSpeedEngine.__init__, list(DEEPSPEED_OPTIMIZERS), DEEPSPEED_OPTIMIZERS
    names_before, files_before = names(), files()
    package = importlib.import_module("gradwire.deepspeed_comp")
    imported = names()
    package.register()
    package.register()
    registered = names()
    config = importlib.import_module("deepspeed.runtime.config")
    engine = importlib.import_module("deepspeed.runtime.engine")
    report = {
        "files": [path for path, digest in files().items() if files_before.get(path) != digest],
        "changed": changed(names_before, imported),
        "added": added(names_before, imported),
        "by registering again": [*changed(imported, registered), *added(imported, registered)],
        "same list": list_ is config.DEEPSPEED_OPTIMIZERS is engine.DEEPSPEED_OPTIMIZERS,
        "optimizers": [list_[: len(optimizers)] == optimizers, list_[len(optimizers) :]],
        "wrapped once": DeepSpeedEngine.__init__.__wrapped__ is constructor,  # pyright: ignore - functools.wraps sets it
    }
    sys.stdout.write("\n" + json.dumps(report))


if __name__ == "__main__":
    main()
