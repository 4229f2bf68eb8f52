"""docs/ddp.md and examples/ddp_topk.py: what they say is so, and what they show runs."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import gradwire
import pytest
from gradwire.backends import ddp
from gradwire.launch.runs import launch_command

from ..launching import run_job

ROOT = Path(gradwire.__file__).parent
#: PyTorch 2.13 aborts (also without gradwire) where a process ends while a thread of Gloo's lets go of its last work
LINGER = "import time; time.sleep(0.5)"
DOCUMENT = (ROOT / "docs" / "ddp.md").read_text()


def test_every_option_is_there_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \|", DOCUMENT, re.MULTILINE)
    options = inspect.signature(ddp.compress).parameters.values()
    told = {name: json.loads(default.lower()) for name, default in rows}
    assert told == {option.name: option.default for option in options if option.kind is option.KEYWORD_ONLY}


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_snippets_run(ranks: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("\n".join([*re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL), LINGER]))
    done = run_job([*launch_command("torch", ranks), str(script)], 120)
    assert done.returncode == 0, done.stdout
    assert ("compressing 1 of 4 tensors" in done.stdout) == (ranks > 1)


def test_the_example_goes_on_where_it_ended(tmp_path: Path) -> None:
    report = tmp_path / "report"
    script = [str(ROOT / "examples" / "ddp_topk.py"), "--steps", "3", "--folder", str(tmp_path)]
    for first in (1, 4):
        done = run_job([*launch_command("torch", 2), *script, "--report", str(report)], 120)
        assert done.returncode == 0, done.stdout
        *steps, last = [json.loads(line) for line in report.read_text().splitlines()]
        assert [step["step"] for step in steps] == list(range(first, first + 3))
        assert all(20 * step["sent_bytes"] < step["raw_bytes"] for step in steps)
        assert last["held_out_loss"] < 6


def test_the_example_named_is_there() -> None:
    for name in re.findall(r"examples/\w+\.py", DOCUMENT):
        assert (ROOT / name).is_file()
