"""`launch/test` with pretended tools: every stage runs, whatever fails before it, and the counts add up."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import gradwire
import pytest

ROOT = Path(gradwire.__file__).parent
SCRIPTS = ["launch/setup", "launch/test", "launch/demo", "launch/versions", ".ci/run"]
LINT = ["lint", "format", "types"]
#: stages that a launcher runs, and those that pytest runs by itself
LAUNCHED = [
    *("horovod-gloo-2", "horovod-mpi-2", "horovod-gloo-8", "horovod-mpi-8"),
    *("mpi-4", "torch-2", "torch-4", "deepspeed-2", "deepspeed-4", "deepspeed-0.19.6-2"),
]
UNIT = ["unit", "triton"]
ALONE = ["parity", "deepspeed-launcher", "cluster", "demo"]
PARALLEL = [*LAUNCHED, *ALONE]
PASSED = 5 * len(LAUNCHED) + 7 * len([*UNIT, *ALONE])
RANKS = "printf '[%s]<stdout>:5 passed in 2.00s\\n' 0 1"


@dataclass
class Clone:
    """A folder with the real script, a set-up that does nothing, and tools that only print."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("launch", "venv/bin"):
            (self.folder / name).mkdir(parents=True)
        shutil.copy(ROOT / "launch" / "test", self.folder / "launch" / "test")
        self.tool("launch/setup", "true")
        for name in ("ruff", "pyright"):
            self.tool(f"venv/bin/{name}", "echo '0 errors'")
        self.tool("venv/bin/python", "echo '7 passed in 0.10s'")
        for name in ("horovodrun", "mpirun", "torchrun"):
            self.tool(f"venv/bin/{name}", RANKS)

    def tool(self, name: str, command: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/usr/bin/env bash\n{command}\n")
        path.chmod(0o755)

    def test(self, *arguments: str) -> tuple[int, list[str]]:
        """Exit status and lines of output."""
        answer = subprocess.run(
            [str(self.folder / "launch" / "test"), *arguments],
            env={**os.environ, "GRADWIRE_VENV": str(self.folder / "venv")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return answer.returncode, answer.stdout.splitlines()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def stages(lines: list[str]) -> dict[str, str]:
    """The table at the end: stage and result."""
    table = lines[len(lines) - 1 - lines[::-1].index("") + 1 : -1]
    return {line.split()[0]: line.split(maxsplit=1)[1].split("  ")[0] for line in table}


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_bash(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env bash\n")
    bash = shutil.which("bash")
    assert bash is not None
    assert subprocess.run([bash, "-n", str(ROOT / script)], check=False).returncode == 0


def test_all_stages_pass_and_every_test_counts_once_whatever_the_ranks(clone: Clone) -> None:
    status, lines = clone.test()
    assert status == 0
    assert stages(lines) == dict.fromkeys([*LINT, *UNIT, *PARALLEL], "passed")
    assert lines[-1] == f"{PASSED} passed, 0 failed"


@pytest.mark.parametrize(("part", "expected"), [("lint", LINT), ("unit", UNIT), ("parallel", PARALLEL)])
def test_a_part_of_the_stages(clone: Clone, part: str, expected: list[str]) -> None:
    status, lines = clone.test(part)
    assert status == 0
    assert list(stages(lines)) == expected


def test_a_failure_is_counted_and_the_stages_after_it_run(clone: Clone) -> None:
    clone.tool("venv/bin/ruff", "exit 1")
    clone.tool("venv/bin/mpirun", "echo '2 failed, 3 passed in 1.00s'; echo '2 failed in 1.00s'; exit 1")
    status, lines = clone.test()
    assert status == 1
    failed = {"lint", "format", "mpi-4"}
    assert stages(lines) == {name: "failed" if name in failed else "passed" for name in [*LINT, *UNIT, *PARALLEL]}
    assert lines[-1] == f"{PASSED - 2} passed, 4 failed"


def test_a_stage_that_fails_without_a_count_is_one_failure(clone: Clone) -> None:
    clone.tool("venv/bin/python", "echo '7 passed in 0.10s'; exit 3")
    status, lines = clone.test("unit")
    assert (status, lines[-1]) == (1, "14 passed, 2 failed")


def test_a_stage_that_does_not_end_is_stopped(clone: Clone) -> None:
    script = clone.folder / "launch" / "test"
    script.write_text(script.read_text().replace("stage unit 900 ", "stage unit 1 "))
    clone.tool("venv/bin/python", "[[ $PYTHONPATH == *triton ]] && echo '7 passed in 0.10s' || sleep 600")
    status, lines = clone.test("unit")
    assert (status, lines[-1]) == (1, "7 passed, 1 failed")
    assert stages(lines) == {"unit": "no end after 1 s", "triton": "passed"}


@pytest.mark.parametrize("arguments", [["everything"], ["unit", "lint"], ["--fast"]])
def test_an_unknown_part_is_refused_with_the_allowed_ones(clone: Clone, arguments: list[str]) -> None:
    status, lines = clone.test(*arguments)
    assert status == 2
    assert lines == [f"test: '{' '.join(arguments)}' is no part of the tests; allowed: all, lint, unit, parallel"]
