"""Print which classes are found on a release that has its own. Started by test_registration.py.

Such a release is imitated: the modules are there, and the optimizers' names are in DeepSpeed's list.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

ONEBIT = "deepspeed.runtime.fp16.onebit"
COMM = "deepspeed.runtime.comm"
CLASSES = {
    f"{ONEBIT}.adam": "OnebitAdam",
    f"{ONEBIT}.lamb": "OnebitLamb",
    f"{ONEBIT}.zoadam": "ZeroOneAdam",
    f"{COMM}.compressed": "CompressedBackend",
    f"{COMM}.mpi": "MpiBackend",
    f"{COMM}.nccl": "NcclBackend",
}


def pretend() -> None:
    package = ModuleType(ONEBIT)
    package.__spec__, package.__path__ = ModuleSpec(ONEBIT, None, is_package=True), []
    sys.modules[ONEBIT] = package
    for path, name in CLASSES.items():
        module = ModuleType(path)
        module.__spec__ = ModuleSpec(path, None)
        setattr(module, name, type(name, (), {"__module__": path}))
        if path.startswith(ONEBIT):
            setattr(package, name, getattr(module, name))
        sys.modules[path] = module
    DEEPSPEED_OPTIMIZERS.extend(["onebitadam", "onebitlamb", "zerooneadam"])


def owners() -> dict[str, object]:
    """Whose class each old path gives, and whose are the package's and torch.optim's."""
    found: dict[str, object] = {
        path: getattr(importlib.import_module(path), name).__module__.split(".")[0] for path, name in CLASSES.items()
    }
    package = importlib.import_module(ONEBIT)
    found["package"] = sorted({getattr(package, name).__module__.split(".")[0] for name in list(CLASSES.values())[:3]})
    found["torch.optim"] = [name for name in vars(torch.optim) if name.lower() in DEEPSPEED_OPTIMIZERS[-3:]]
    return found


def main() -> None:
    pretend()
    package = importlib.import_module("gradwire.deepspeed_comp")
    imported = owners()
    package.register(replace=True)
    report = {"imported": imported, "replaced": owners(), "list": DEEPSPEED_OPTIMIZERS[-4:]}
    sys.stdout.write("\n" + json.dumps(report))


if __name__ == "__main__":
    main()
