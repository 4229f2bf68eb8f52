"""A rank of `gradwire deepspeed`: registers gradwire with DeepSpeed, then becomes what the launcher was to run.

The launcher runs this file where it would run a script, and this module where it would run a module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["main"]


def main(arguments: Sequence[str], *, as_module: bool) -> None:
    """Run what `arguments` name, with the rest of them.

    Args:
        arguments: perhaps `--local_rank=N`, which DeepSpeed's launcher puts first; a script or module; its arguments.
        as_module: it is a module.
    """
    own = 1 if arguments[0].startswith("--local_rank=") else 0
    target = arguments[own]
    sys.argv = [target, *arguments[:own], *arguments[own + 1 :]]
    if not as_module:
        see_files_beside(target)
    register()
    run_module(target) if as_module else run_script(target)


def see_files_beside(path: str) -> None:
    """Imports find what lies beside the script, and no longer what lies beside this file."""
    if sys.path[0] == os.path.dirname(os.path.realpath(__file__)):  # not so with Python's option -P
        sys.path[0] = os.path.dirname(os.path.realpath(path))


def register() -> None:
    from importlib import import_module

    import_module("gradwire.deepspeed_comp")  # this file may be no part of the package


def run_module(name: str) -> None:
    from runpy import run_module

    run_module(name, run_name="__main__", alter_sys=True)


def run_script(path: str) -> None:
    """What `python path` does. `runpy.run_path` would take `__main__` away before threads and exit functions end."""
    from importlib.machinery import SourceFileLoader

    file = os.path.abspath(path)
    try:
        with open(file, "rb") as script:
            source = script.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {file!r}: {error}", file=sys.stderr)
        sys.exit(2)
    module = ModuleType("__main__")
    module.__file__, module.__loader__ = file, SourceFileLoader("__main__", file)
    sys.modules["__main__"] = module
    exec(compile(source, file, "exec", dont_inherit=True), vars(module))  # noqa: S102 - the user's own script


if __name__ == "__main__":
    main(sys.argv[1:], as_module=__spec__ is not None)
