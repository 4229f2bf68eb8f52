"""Print what gradwire changes in Horovod: in its files, and in its modules. Started by test_seam.py."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import horovod.torch


def modules() -> Iterator[ModuleType]:
    yield from (module for name, module in sorted(sys.modules.items()) if name.split(".")[0] == "horovod")


def names() -> dict[str, object]:
    """Every name in a module of Horovod, and every name in a class of one."""
    found: dict[str, object] = {}
    for module in modules():
        for name, value in vars(module).items():
            found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type) and value.__module__.startswith("horovod"):
                found |= {f"{module.__name__}.{name}.{inner}": item for inner, item in vars(value).items()}
    return found


def files() -> dict[str, str]:
    root = Path(next(iter(horovod.__path__)))
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def main() -> None:
    names_before, files_before = names(), files()
    seam = importlib.import_module("gradwire.horovod_comp._seam")
    imported = changed(names_before, names())
    importlib.import_module("gradwire.horovod_comp")
    seam.install()
    seam.install()
    importlib.reload(seam).install()
    files_after = files()
    report = {
        "files": [path for path in files_before | files_after if files_before.get(path) != files_after.get(path)],
        "by importing the seam": imported,
        "by installing it": changed(names_before, names()),
    }
    sys.stdout.write(json.dumps(report))


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names that are new, gone, or stand for another object."""
    nothing = object()
    return sorted(name for name in before | after if before.get(name, nothing) is not after.get(name, nothing))


if __name__ == "__main__":
    main()
