"""`gradwire deepspeed`: what is whose on the command line, and that a script does not notice who runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from deepspeed.launcher import runner
from gradwire.compressors.errors import UnsupportedError
from gradwire.launch import cli, deepspeed
from gradwire.launch.deepspeed import RANK, RANK_FILE, Split, command, split
from hypothesis import given
from hypothesis import strategies as st

FACTS = """
import json, os, sys
def f(x: int): ...
facts = dict(
    argv=sys.argv, name=__name__, file=__file__, package=__package__, path=sys.path[0],
    spec=getattr(__spec__, "name", None), loader=type(__loader__).__name__,
    lazy=isinstance(f.__annotations__["x"], str), main=vars(sys.modules["__main__"]) is globals(),
)
print("FACTS", json.dumps(facts), flush=True)
"""

OPTIONS = st.lists(
    st.sampled_from(
        [
            ["--num_gpus", "2"],
            ["--num_gpus=2"],
            ["--num_acc", "2"],  # argparse takes what is not ambiguous
            ["-i", "worker-0@worker-1:0,2"],
            ["--launcher", "openmpi", "--launcher_args", "-x A --b"],
            ["--master_port=29512"],
            ["--no_local_rank"],
            ["--module"],
            ["--autotuning", "tune"],
            ["-q"],
        ]
    ),
    max_size=4,
)
ARGUMENTS = st.lists(st.sampled_from(["--lr", "-1", "--num_gpus", "train.py", "--module", "-q", "x y", "", "--config"]))


@given(OPTIONS, st.sampled_from([[], ["--"]]), ARGUMENTS)
def test_the_launcher_gets_its_options_and_the_script_its_arguments(
    options: list[list[str]], dashes: list[str], own: list[str]
) -> None:
    given = [*chain(*options), *dashes, "train.py", *own]
    parsed = runner.parse_args(given)
    started = runner.parse_args(command(split(given, parsed), parsed.module))
    assert started.user_script == (RANK if parsed.module else str(RANK_FILE))
    expected = own if dashes else ["--deepspeed_config" if word == "--config" else word for word in own]
    assert started.user_args == ["train.py", *expected]
    ours = {"user_script", "user_args"}
    assert {key: value for key, value in vars(started).items() if key not in ours} == {
        key: value for key, value in vars(parsed).items() if key not in ours
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py", Split([], "train.py", [], False)),
        ("--num_gpus 2 train.py --num_gpus 3", Split(["--num_gpus", "2"], "train.py", ["--num_gpus", "3"], False)),
        ("-H train.py train.py train.py", Split(["-H", "train.py"], "train.py", ["train.py"], False)),
        ("-q -- train.py --x", Split(["-q"], "train.py", ["--x"], True)),
        ("train.py -- x", Split([], "train.py", ["x"], False)),  # DeepSpeed takes the dashes away
        ("train.py x -- y", Split([], "train.py", ["x", "--", "y"], False)),
    ],
)
def test_where_the_script_stands(line: str, expected: Split) -> None:
    assert split(line.split(), runner.parse_args(line.split())) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--config ds.json", "--deepspeed_config ds.json"),
        ("--deepspeed --config=ds.json --lr 1", "--deepspeed --deepspeed_config=ds.json --lr 1"),
        ("--deepspeed_config ds.json --config own.yaml", "--deepspeed_config ds.json --config own.yaml"),
        ("--deepspeed_config=ds.json --config own.yaml", "--deepspeed_config=ds.json --config own.yaml"),
        ("--configuration x -c y --my-config z", "--configuration x -c y --my-config z"),
        ("-- --config x", "-- --config x"),
    ],
)
def test_config_is_a_name_for_deepspeed_config(line: str, expected: str) -> None:
    assert deepspeed.with_config(line.split()) == expected.split()


def test_a_renamed_option_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    command(Split([], "train.py", ["--config", "ds.json"], False), False)
    assert "train.py gets --config as --deepspeed_config" in capsys.readouterr().err
    command(Split([], "train.py", ["--deepspeed_config", "ds.json"], False), False)
    assert capsys.readouterr().err == ""


def test_what_is_no_python_is_refused_with_the_remedy() -> None:
    options = cli.command_line().parse_args(["deepspeed", "--no_python", "train.sh"])
    with pytest.raises(UnsupportedError, match=r"train\.sh.*import gradwire\.deepspeed_comp"):
        options.run(options)


@pytest.mark.parametrize("arguments", [[], ["--num_gpus", "2"]])
def test_a_missing_script_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["deepspeed", *arguments])
    assert stopped.value.code == 2


def test_an_exit_status_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "main", lambda arguments: sys.exit(7))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["deepspeed", "--num_gpus", "2", "train.py"])
    assert stopped.value.code == 7


def test_without_deepspeed_only_this_command_fails() -> None:
    code = (
        "import sys; sys.modules['deepspeed'] = None\n"
        "from gradwire.launch.cli import main\n"
        "sys.exit(main(['version']) or main(['deepspeed', 'train.py']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.count("\n")) == (1, 1)
    assert 'pip install "gradwire[deepspeed]"' in done.stderr


# A rank. DeepSpeed's launcher runs `python -u [-m] SCRIPT --local_rank=N ARGUMENTS…`.


def facts(folder: Path, *arguments: str) -> object:
    command = [sys.executable, "-u", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FACTS")]
    return json.loads(line.removeprefix("FACTS"))


@pytest.mark.parametrize("rank", [["--local_rank=1"], []], ids=["local rank", "no local rank"])
def test_a_script_is_run_as_python_runs_it(rank: list[str], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text(FACTS)
    (tmp_path / "link.py").symlink_to("sub/train.py")
    for script in ("sub/train.py", "link.py"):
        expected = facts(tmp_path, script, *rank, "-x", "--", "y z")
        assert facts(tmp_path, str(RANK_FILE), *rank, script, "-x", "--", "y z") == expected


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(FACTS)
    expected = facts(tmp_path, "-m", "package.train", "--local_rank=0", "-x")
    assert facts(tmp_path, "-m", RANK, "--local_rank=0", "package.train", "-x") == expected


def test_gradwire_is_there_before_the_script_s_first_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys; assert 'gradwire.deepspeed_comp' in sys.modules\n"
        "from deepspeed.runtime.comm.nccl import NcclBackend\n"
        "import atexit, threading\n"
        "def last(): print('last words of', __name__, threading.active_count())\n"
        "atexit.register(last)\n"
        "def fault(): raise KeyError('mine')\n"
        "fault()\n"
    )
    done = subprocess.run([sys.executable, RANK_FILE, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "last words of __main__" in done.stdout
    assert f'File "{script}", line 7, in <module>\n    fault()' in done.stderr
    assert f'File "{script}", line 6, in fault' in done.stderr
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")


def test_a_script_that_is_not_there_is_told_as_python_tells_it(tmp_path: Path) -> None:
    texts = []
    for arguments in ([RANK_FILE, "no.py"], ["no.py"]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 2
        texts.append(done.stderr.splitlines()[-1])
    assert texts[0].split(": ")[:2] == texts[1].split(": ")[:2]
