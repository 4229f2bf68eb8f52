from __future__ import annotations

import subprocess
import sys

import pytest
from gradwire.backends import MpiTransport, TorchTransport
from gradwire.backends.transport import sleep_until
from gradwire.compressors.errors import MissingDependencyError, UsageError


def test_importing_the_backends_does_not_start_mpi() -> None:
    code = "import sys, gradwire.backends; sys.exit('mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingDependencyError, match=r'MpiTransport needs mpi4py.*pip install "gradwire\[mpi\]"'):
        MpiTransport()


def test_without_a_process_group_the_error_says_what_to_call() -> None:
    with pytest.raises(UsageError, match=r"torch.distributed is not initialised: call .*init_process_group"):
        TorchTransport()


def test_sleeping_ends_when_it_is_done() -> None:
    answers = iter([False, False, True])
    assert sleep_until(lambda: next(answers), 60.0)
    assert next(answers, None) is None


def test_sleeping_ends_with_its_time() -> None:
    assert not sleep_until(lambda: False, 0.01)
    assert not sleep_until(lambda: False, 0.0)
    assert sleep_until(lambda: True, 0.0)
