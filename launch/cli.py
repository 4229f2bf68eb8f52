"""The `gradwire` command: a table of sub-commands, each a module of this folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from .._version import __version__
from ..compressors.errors import GradwireError

__all__ = ["main"]

#: name, and what it does; the module of that name has `add_arguments(parser)` and `run(options) -> int`
COMMANDS = {
    "bench": "times of steps and calls, side by side",
    "cluster": "run a command on emulated hosts, with links as slow as you like",
    "deepspeed": "run an untouched script by the deepspeed launcher, with gradwire registered in every rank",
    "demo": "train a small GPT with and without compression; a table and a picture",
    "doctor": "what is installed, and which kernels run",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit status."""
    options = command_line().parse_args(arguments)
    try:
        return options.run(options)
    except GradwireError as error:
        print(f"gradwire: {error}", file=sys.stderr)
        return 1


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gradwire", description="Gradient compression for Horovod and DeepSpeed.")
    parser.add_argument("--version", action="version", version=f"gradwire {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        module = import_module(f".{name}", __package__)
        command = commands.add_parser(name, help=purpose, description=purpose, allow_abbrev=False)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    commands.add_parser("version", help="print the version").set_defaults(run=print_version)
    return parser


def print_version(options: argparse.Namespace) -> int:
    print(f"gradwire {__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
