"""Modules that DeepSpeed no longer has, under their old import paths."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from ._host import has_module

__all__ = ["add_module", "add_package"]


def add_module(path: str, names: Mapping[str, object], *, replace: bool) -> None:
    """Let `import path` give a module with these names, where there is none or `replace` is set."""
    if replace or not has_module(path):
        _put(_module(path), names)


def add_package(path: str, names: Mapping[str, object], *, replace: bool) -> None:
    """The same for a package of such modules. One that exists stays, and with `replace` gets the names."""
    if not has_module(path):
        package = _module(path)
        package.__path__ = []
        _put(package, names)
    elif replace:
        vars(import_module(path)).update(names)


@cache
def _module(path: str) -> ModuleType:
    module = ModuleType(path, "An old import path of DeepSpeed, kept by gradwire.deepspeed_comp.")
    module.__spec__ = ModuleSpec(path, None)
    module.__package__ = path.rpartition(".")[0]
    return module


def _put(module: ModuleType, names: Mapping[str, object]) -> None:
    vars(module).update(names)
    parent, _, name = module.__name__.rpartition(".")
    sys.modules[module.__name__] = module
    setattr(import_module(parent), name, module)
