"""What `pip install .` puts in place; `pip install -e .` is how launch/setup installs what all other tests use."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import gradwire
import pytest

ROOT = Path(gradwire.__file__).parent
FOLDERS = ["compressors", "backends", "horovod_comp", "deepspeed_comp", "launch"]


def run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which a copy of the tracked files was installed."""
    folder = tmp_path_factory.mktemp("install")
    source, target = folder / "source", folder / "target"
    files = run(["git", "ls-files"], ROOT).splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--target", str(target), str(source)], folder)
    return target


def test_every_module_is_there_and_nothing_else_lands_in_site_packages(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} - {"bin"} == {"gradwire"}
    there = {path.relative_to(installed / "gradwire").as_posix() for path in (installed / "gradwire").rglob("*.py")}
    ours = {path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert there == ours | {"__init__.py", "_version.py"}
    assert (installed / "gradwire/py.typed").is_file()


def test_the_installed_package_works_from_any_folder(installed: Path, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "import gradwire, torch, gradwire.backends, gradwire.horovod_comp\n"
        "meta = gradwire.TensorMeta(name='w', shape=(64, 64), dtype=torch.float32)\n"
        "ctx = gradwire.Context(meta=meta)\n"
        "x = torch.randn(64, 64)\n"
        "done = gradwire.ErrorFeedback(gradwire.TopK(ratio=0.1)).compress(x, {}, ctx)\n"
        "sent = gradwire.TopK(ratio=0.1).decompress(done.payload, ctx)\n"
        "assert torch.equal(sent + done.state['residual'].view(64, 64), x)\n"
        "print(gradwire.__file__)"
    )
    assert run([sys.executable, "-P" if sys.version_info >= (3, 11) else "-E", "-c", code], tmp_path).startswith(
        str(installed)
    )


def test_the_extras_of_the_readme_and_of_the_error_texts_exist() -> None:
    extras = set(importlib.metadata.metadata("gradwire").get_all("Provides-Extra") or [])
    assert {"horovod", "deepspeed", "mpi", "dev"} <= extras
    texts = [path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    texts.append((ROOT / "README.md").read_text())
    named = {extra for text in texts for extra in re.findall(r"gradwire\[(\w+)\]", text)}
    named |= {match for text in texts for match in re.findall(r'MissingDependencyError\("\w+", "(\w+)"', text)}
    assert named
    assert named <= extras
