"""Every command, snippet and number of the README."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gradwire
import pytest
import torch
from deepspeed.launcher import runner
from gradwire import ErrorFeedback, NoCompression, SizePolicy, TensorMeta, with_defaults
from gradwire.backends import LocalTransport
from gradwire.backends.plan import Planner
from gradwire.deepspeed_comp.options import OneBitAdamOptions
from gradwire.launch.codec_cases import limit
from gradwire.launch.deepspeed import split
from gradwire.launch.runs import environment, launch_command

ROOT = Path(gradwire.__file__).parent
README = (ROOT / "README.md").read_text()
META = TensorMeta(name="matrix", shape=(1024, 1024), dtype=torch.float32)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def table() -> list[list[str]]:
    rows = re.findall(r"^\| `.*\|$", README, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_all_blocks_are_of_a_kind_that_a_test_here_runs() -> None:
    assert set(re.findall(r"^```(\w+)", README, re.MULTILINE)) == {"bash", "diff", "json", "python"}


def test_the_two_commands_exist_and_ci_runs_the_second() -> None:
    demo, test = blocks("bash")[0].split()
    assert (ROOT / demo).is_file()
    assert (ROOT / test).is_file()
    assert f"exec {test}" in (ROOT / ".ci/run").read_text()


def test_the_demo_s_options_are_understood(tmp_path: Path) -> None:
    _, *options = blocks("bash")[1].split()
    short = ["--steps", "2", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "gradwire.launch.demo", *options, *short]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.rglob("*.png"))


def test_the_diff_makes_a_script_that_trains(tmp_path: Path) -> None:
    (diff,) = blocks("diff")
    script = tmp_path / "train.py"
    script.write_text("".join(line[1:] + "\n" for line in diff.splitlines() if not line.startswith("-")))
    assert len([line for line in diff.splitlines() if line.startswith(("+", "-"))]) == 5
    command = [*launch_command("gloo", 2), sys.executable, str(script)]
    done = subprocess.run(command, env=environment(2), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compressing 1 of 2 tensors, 100 % of bytes; error feedback on" in done.stdout


def test_the_configuration_trains_under_deepspeed_s_launcher(tmp_path: Path) -> None:
    (text,) = blocks("json")
    config = json.loads(text)
    OneBitAdamOptions.read(config["optimizer"]["params"])
    config["optimizer"]["params"]["freeze_step"] = 1
    (tmp_path / "ds.json").write_text(json.dumps(config))
    program, first, ranks, *rest = blocks("bash")[2].splitlines()[0].split()
    assert (program, first) == ("deepspeed", "--num_gpus")
    example = [str(ROOT / word) if (ROOT / word).is_file() else word for word in rest]
    short = ["--config", str(tmp_path / "ds.json"), "--steps", "3", "--report", str(tmp_path / "report")]
    command = [*launch_command("deepspeed", int(ranks)), *example, *short]
    done = subprocess.run(command, env=environment(2), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *steps, last = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    sent = [0, *(step["sent_bytes"] for step in steps)]
    assert sent[1] == steps[0]["raw_bytes"]
    assert all(0 < after - before < sent[1] / 14 for before, after in pairwise(sent[1:])), "bf16 holds 16 bits"
    assert last["held_out_loss"] > 0


def test_an_untouched_script_s_command_is_understood() -> None:
    program, command, *arguments = blocks("bash")[2].splitlines()[1].split()
    assert (program, command) == ("gradwire", "deepspeed")
    assert split(arguments, runner.parse_args(arguments)) == (
        ["--num_gpus", "2"],
        "train.py",
        ["--deepspeed_config", "ds.json"],
        False,
    )


def test_the_snippet_without_either_runs() -> None:
    for snippet in blocks("python"):
        exec(compile(snippet, "README.md", "exec"), {})  # noqa: S102 - the README's own code


@pytest.mark.parametrize("row", table(), ids=lambda row: row[0].strip("`"))
def test_a_row_of_the_table_tells_the_truth(row: list[str]) -> None:
    code, nbytes, spare, exchange, biased, memory = row
    codec = eval(code.strip("`"), dict(vars(gradwire)))  # noqa: S307 - the README's own code
    assert f"{codec.nbytes(META) / META.numel:.3f}" == nbytes
    assert f"{100 * (codec.nbytes(META) / limit(codec, META) - 1):.1f} %" == spare
    planner = Planner(with_defaults(codec), LocalTransport.group(4)[0], "auto", 1 << 20)
    assert planner.buckets([[META]], "x")[0].lane.kind == exchange.replace("-", "_")
    assert ("no" if codec.unbiased else "yes") == biased
    assert memory == ("no" if isinstance(codec, NoCompression) else "on" if remembers(codec) else "off")


def remembers(codec: gradwire.Compressor) -> bool:
    full = with_defaults(codec)
    full = full.compressor if isinstance(full, SizePolicy) else full
    return isinstance(full, ErrorFeedback)


def test_the_table_has_every_codec() -> None:
    named = {row[0].strip("`").split("(")[0] for row in table()}
    codecs = {
        name
        for name in gradwire.__all__
        if isinstance(thing := getattr(gradwire, name), type)
        and issubclass(thing, gradwire.Compressor)
        and thing not in (gradwire.Compressor, ErrorFeedback, SizePolicy)
    }
    assert named == codecs


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_error_feedback_can_be_switched_off_as_the_readme_says() -> None:
    for row in table():
        codec = eval(row[0].strip("`"), dict(vars(gradwire)))  # noqa: S307 - the README's own code
        if hasattr(codec, "error_feedback"):
            assert not remembers(replace(codec, error_feedback=False))
