"""`launch/setup` on machines that lack something: a pretended Python and an own PATH, nothing is installed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import gradwire
import pytest

SETUP = Path(gradwire.__file__).parent / "launch" / "setup"
TOOLS = "awk bash cat chmod cut df dirname env grep kill ln mkdir nproc sha256sum sleep tail".split()  # noqa: SIM905
PYTHON = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
    *"$FAIL"*) echo "$TEXT" >&2; exit 1 ;;
    *version_info*) echo "$VERSION" ;;
    "-m venv "*) mkdir -p "$3/bin" && cat "$0" >"$3/bin/python" && chmod +x "$3/bin/python" ;;
esac
"""


@dataclass
class Machine:
    """A folder of tools as the whole PATH, and settings for the pretended Python."""

    folder: Path
    settings: dict[str, str] = field(default_factory=lambda: {"VERSION": "3.12", "FAIL": "nothing", "TEXT": "no"})

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir()
        for tool in TOOLS:
            (self.folder / "bin" / tool).symlink_to(shutil.which(tool) or tool)
        self.tool("python3", PYTHON)
        self.tool("c++", "#!/usr/bin/env bash\ncat >/dev/null\n")
        self.tool("make", "#!/usr/bin/env bash\n")

    def tool(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def without(self, name: str) -> None:
        (self.folder / "bin" / name).unlink()

    def set_up(self, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": str(self.folder / "bin"),
            "CALLS": str(self.folder / "calls"),
            "GRADWIRE_VENV": str(self.venv),
            **self.settings,
            **settings,
        }
        return subprocess.run(
            [str(SETUP)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def refusal(self, **settings: str) -> str:
        answer = self.set_up(**settings)
        assert answer.returncode == 1, answer.stdout + answer.stderr
        assert "Traceback" not in answer.stderr
        assert "\nremedy: " in answer.stderr
        return answer.stderr

    @property
    def venv(self) -> Path:
        return self.folder / "venv"

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    @property
    def stamps(self) -> set[str]:
        return {path.name for path in (self.venv / "stamps").iterdir()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


STEPS = {"venv", "torch", "build", "mpi", "horovod", "deepspeed", "old_deepspeed", "triton", "gradwire"}


def test_all_steps_run_once_and_torch_comes_first(machine: Machine) -> None:
    answer = machine.set_up()
    assert answer.returncode == 0, answer.stderr
    assert machine.stamps == STEPS
    installs = [call for call in machine.calls if "pip install" in call]
    assert installs[0].endswith(" torch==2.13.0")
    assert all("--constraint" in call for call in installs)
    before = machine.calls
    again = machine.set_up()
    assert (again.returncode, again.stdout) == (0, "")
    assert [call for call in machine.calls[len(before) :] if "pip install" in call or "-m venv" in call] == []


def test_no_python(machine: Machine) -> None:
    machine.without("python3")
    text = machine.refusal()
    assert "no Python: 'python3'" in text
    assert "PYTHON=" in text


@pytest.mark.parametrize("version", ["3.9", "3.14", "2.7"])
def test_a_python_that_will_not_do(machine: Machine, version: str) -> None:
    text = machine.refusal(VERSION=version)
    assert f"Python {version}" in text
    assert "3.10 to 3.13" in text


@pytest.mark.parametrize(
    ("check", "what", "remedy"),
    [("ensurepip", "venv module", "apt-get install python3.12-venv"), ("Python.h", "header", "python3.12-dev")],
)
def test_an_incomplete_python(machine: Machine, check: str, what: str, remedy: str) -> None:
    text = machine.refusal(FAIL=check)
    assert what in text
    assert remedy in text


def test_no_compiler(machine: Machine) -> None:
    machine.without("c++")
    text = machine.refusal()
    assert "no C++ compiler" in text
    assert "apt-get install build-essential" in text


def test_a_compiler_that_is_too_old(machine: Machine) -> None:
    machine.tool("old-c++", "#!/usr/bin/env bash\nexit 1\n")
    text = machine.refusal(CXX="old-c++")
    assert "'old-c++' does not know C++20" in text
    assert "GCC 11" in text


def test_no_make(machine: Machine) -> None:
    machine.without("make")
    assert "no make" in machine.refusal()


def test_a_path_with_a_space(machine: Machine) -> None:
    text = machine.refusal(GRADWIRE_VENV=str(machine.folder / "my venv"))
    assert "has a space" in text
    assert "remedy: GRADWIRE_VENV=" in text


def test_a_full_disk(machine: Machine) -> None:
    machine.tool("df", "#!/usr/bin/env bash\nprintf 'head\\n/dev/x 9 9 1048576 9%% /\\n'\n")
    text = machine.refusal()
    assert "1024 MiB are free" in text
    assert "needs 7 GiB" in text


def test_checks_come_before_anything_is_installed(machine: Machine) -> None:
    machine.without("make")
    machine.refusal()
    assert not any("pip install" in call or "-m venv" in call for call in machine.calls)


@pytest.mark.parametrize(
    "error", ["NewConnectionError('…')", "Temporary failure in name resolution", "ReadTimeoutError"]
)
def test_no_network(machine: Machine, error: str) -> None:
    text = machine.refusal(FAIL="torch==2.13.0", TEXT=f"WARNING: Retrying: {error}")
    assert "no network" in text
    assert str(machine.venv / "setup-logs" / "torch.log") in text
    assert machine.stamps == {"venv"}


def test_the_disk_fills_up_on_the_way(machine: Machine) -> None:
    assert "disk space ran out" in machine.refusal(FAIL="deepspeed", TEXT="OSError: [Errno 28] No space left on device")


def test_another_failure_shows_the_last_line_of_its_log(machine: Machine) -> None:
    assert "deepspeed failed: ERROR: wheel is odd" in machine.refusal(FAIL="deepspeed", TEXT="ERROR: wheel is odd")


@pytest.mark.parametrize(("package", "step"), [("horovod==0.28.1", "horovod"), ("triton==3.9.0", "triton")])
def test_set_up_goes_on_without_some_and_tries_them_again_next_time(machine: Machine, package: str, step: str) -> None:
    answer = machine.set_up(FAIL=package, TEXT="      Could NOT find CUDAToolkit")
    assert answer.returncode == 0, answer.stderr
    assert f"warning: {step} could not be installed" in answer.stderr
    assert "will not run. Could NOT find CUDAToolkit Log: " in answer.stderr
    assert machine.stamps == STEPS - {step}
    assert machine.set_up().returncode == 0
    assert machine.stamps == STEPS


def test_another_python_than_the_environments(machine: Machine) -> None:
    assert machine.set_up().returncode == 0
    machine.tool("python3.11", PYTHON.replace('"$VERSION"', "3.11"))
    text = machine.refusal(PYTHON="python3.11")
    assert "3.11" in text
    assert f"rm -r '{machine.venv}'" in text


def test_a_moved_environment(machine: Machine) -> None:
    assert machine.set_up().returncode == 0
    moved = machine.folder / "elsewhere"
    machine.venv.rename(moved)
    assert "cannot be moved" in machine.refusal(GRADWIRE_VENV=str(moved))
