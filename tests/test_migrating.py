"""docs/migrating-from-deepspeed-1bit.md: its tables are those of the code, its snippets run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gradwire
import pytest
from deepspeed.launcher import runner
from gradwire.compressors import spec
from gradwire.deepspeed_comp.options import (
    GradientCompression,
    OneBitAdamOptions,
    OneBitLambOptions,
    Settings,
    ZeroOneAdamOptions,
)
from gradwire.launch.deepspeed import command, split

from .launching import run_job
from .support.documented import blocks

ROOT = Path(gradwire.__file__).parent
DOCUMENT = ROOT / "docs" / "migrating-from-deepspeed-1bit.md"
MODELS: dict[str, type[Settings]] = {"A": OneBitAdamOptions, "L": OneBitLambOptions, "Z": ZeroOneAdamOptions}


def table(header: str) -> list[list[str]]:
    """Rows below a header, without backticks around a cell."""
    lines = DOCUMENT.read_text().split(f"{header}\n")[1].splitlines()[1:]
    rows = lines[: next(index for index, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


def defaults(model: type[Settings]) -> dict[str, str]:
    fields = {key: field for key, field in model.model_fields.items() if not field.is_required()}
    return {key: json.dumps(field.default) for key, field in fields.items()}


@pytest.mark.parametrize("letter", MODELS)
def test_every_key_of_an_optimizer_is_there_with_its_default(letter: str) -> None:
    rows = {key: default for key, of, default, _ in table("| key | of | default | meaning |") if letter in of}
    assert rows == defaults(MODELS[letter])


def test_every_key_of_the_block_is_there_with_its_default() -> None:
    rows = {key: default for key, default, _ in table("| key | default | meaning |") if " " not in key}
    assert rows.pop("type") == ""
    assert rows == defaults(GradientCompression)


def test_every_type_of_the_block_is_there() -> None:
    (meaning,) = (row[2] for row in table("| key | default | meaning |") if row[0] == "type")
    assert re.findall(r"`(\w+)`", meaning + "`") == list(spec._CODECS)


def test_it_is_one_line() -> None:
    (diff,) = blocks(DOCUMENT, "diff")
    assert [line for line in diff.splitlines() if line.startswith(("+", "-"))] == ["+import gradwire.deepspeed_comp"]


def test_the_command_is_understood() -> None:
    (line,) = blocks(DOCUMENT, "bash")
    program, name, *arguments = line.split()
    assert (program, name) == ("gradwire", "deepspeed")
    parts = split(arguments, runner.parse_args(arguments))
    assert parts.script == "train.py"
    assert command(parts, False)[-4:] == arguments[-4:]


def test_there_is_no_other_kind_of_block() -> None:
    assert set(re.findall(r"^```(\w+)", DOCUMENT.read_text(), re.MULTILINE)) == {"bash", "diff", "json", "python"}


def test_all_configurations_and_snippets_run_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    script = [str(ROOT / "tests" / "support" / "documented.py"), str(DOCUMENT)]
    done = run_job(["torchrun", "--standalone", "--nproc-per-node", "2", *script], 200.0, tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("all snippets ran") == 2
