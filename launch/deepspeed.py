"""`gradwire deepspeed`: run an untouched script by DeepSpeed's launcher, with gradwire registered in every rank."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..compressors.errors import MissingDependencyError, UnsupportedError

__all__ = ["Split", "add_arguments", "run", "split"]

RANK = "gradwire.launch.deepspeed_rank"
RANK_FILE = Path(__file__).with_name("deepspeed_rank.py")
USAGE = "gradwire deepspeed [OPTIONS OF DEEPSPEED] SCRIPT [--config ds.json] [OPTIONS OF THE SCRIPT]"
EPILOG = (
    "Options of DeepSpeed are those of its launcher: deepspeed --help. The script gets --config as "
    "--deepspeed_config, unless it gets that too; what follows a -- before the script stays as it is."
)


class Split(NamedTuple):
    """A command line of DeepSpeed's launcher.

    Attributes:
        launcher: the launcher's own options.
        script: the script, or with `--module` a module.
        arguments: the script's arguments.
        verbatim: a `--` stood before the script.
    """

    launcher: list[str]
    script: str
    arguments: list[str]
    verbatim: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything is DeepSpeed's or the script's, but a help that comes first."""
    parser.usage, parser.epilog = USAGE, EPILOG
    parser.prefix_chars = ""
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, action=_Rest, metavar="...", help="as deepspeed has them"
    )


class _Rest(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values[:1] in (["-h"], ["--help"]):
            parser.print_help()
            parser.exit()
        if not values:
            parser.error("the script is missing")
        namespace.arguments = values


def run(options: argparse.Namespace) -> int:
    """Start the launcher in this process; an exit status that is not 0 comes as SystemExit.

    Raises:
        MissingDependencyError: DeepSpeed is not installed.
        UnsupportedError: `--no_python`.
    """
    try:
        from deepspeed.launcher import runner
    except ImportError as error:
        raise MissingDependencyError("deepspeed", "deepspeed", "gradwire deepspeed") from error
    parsed = runner.parse_args(options.arguments)
    if parsed.no_python:
        raise UnsupportedError(
            f"--no_python runs {parsed.user_script} by itself, and gradwire gets into Python scripts only: leave the "
            "option out, or write `import gradwire.deepspeed_comp` into what is run and use deepspeed"
        )
    runner.main(command(split(options.arguments, parsed), parsed.module))
    return 0


def split(arguments: Sequence[str], parsed: argparse.Namespace) -> Split:
    """Where the script stands.

    Args:
        arguments: of the launcher.
        parsed: the same as DeepSpeed's own parser took them.
    """
    start = len(arguments) - len(parsed.user_args) - 1
    while arguments[start] != parsed.user_script:  # the parser drops a -- between the two
        start -= 1
    launcher = list(arguments[:start])
    verbatim = launcher[-1:] == ["--"]
    return Split(launcher[:-1] if verbatim else launcher, parsed.user_script, parsed.user_args, verbatim)


def command(parts: Split, module: bool) -> list[str]:
    """The launcher's arguments with a rank of ours in place of the script, and the script as its first argument."""
    arguments = parts.arguments if parts.verbatim else with_config(parts.arguments)
    if arguments != parts.arguments:
        note = f'gradwire: {parts.script} gets --config as --deepspeed_config; write "--" before it to prevent that'
        print(note, file=sys.stderr)
    return [*parts.launcher, RANK if module else str(RANK_FILE), parts.script, *arguments]


def with_config(arguments: list[str]) -> list[str]:
    """`--config` as DeepSpeed calls it, unless both are there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = arguments[:end]
    if any(re.match(r"--deepspeed_config(=|$)", option) for option in options):
        return arguments
    return [re.sub(r"^--config(?==|$)", "--deepspeed_config", option) for option in options] + arguments[end:]
