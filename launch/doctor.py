"""`gradwire doctor`: what is installed, and which kernels run."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from .._version import __version__
from ..compressors import kernels
from ..compressors.kernels import native

__all__ = ["add_arguments", "run"]

HOSTS = ("horovod", "deepspeed", "mpi4py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`gradwire doctor` takes none."""


def run(options: argparse.Namespace) -> int:
    """Print a line per finding; 1 if kernels are slower than they could be."""
    for what, found in findings():
        print(f"{what:<10} {found}")
    return 0 if native.available() else 1


def findings() -> list[tuple[str, str]]:
    """What there is, by name."""
    return [
        ("gradwire", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        *((package, _version_of(package)) for package in HOSTS),
        ("kernels", _kernels()),
        ("threads", str(torch.get_num_threads())),
        ("gpu", _gpu()),
    ]


def _kernels() -> str:
    if not native.available():
        return f"plain torch, which is much slower: native ones are {native.why_not()}"
    return f"native, {native.isa()}"


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none that torch sees"
    form = kernels.form_on(torch.device("cuda"))
    why = "" if form == "triton" else ", which is slower and waits for the GPU: pip install triton"
    return f"{torch.cuda.get_device_name()}, kernels: {'Triton' if form == 'triton' else 'plain torch'}{why}"


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
