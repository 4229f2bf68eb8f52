"""Builds of the native kernels that no wheel has: with sanitizers, and for other processors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gradwire

CSRC = Path(gradwire.__file__).parent / "compressors/csrc"
_FLAGS = ("-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-fPIC", "-pthread")


def compiler(*names: str) -> str | None:
    """The first of these that is installed."""
    return next((name for name in names if shutil.which(name)), None)


def cross_compiler(target: str) -> list[str]:
    """A compiler for other processors that comes as a Python package: clang, with the libraries of many systems."""
    return [sys.executable, "-m", "ziglang", "c++", "-target", target]


def build(command: str | list[str], folder: Path, *flags: str, sources: str = "**/*.cpp") -> list[Path]:
    """Objects of the sources."""
    compiling = [command] if isinstance(command, str) else command

    def compiled(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        run(*compiling, *_FLAGS, *flags, "-c", str(source), "-o", str(target))
        return target

    paths = sorted(CSRC.glob(sources))
    assert paths
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, paths))


def link(command: str, objects: list[Path], library: Path, *flags: str) -> None:
    run(command, *flags, "-shared", "-pthread", *map(str, objects), "-o", str(library))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
