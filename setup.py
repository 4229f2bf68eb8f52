"""The repository's root is the package `gradwire`: a folder's path is its import path."""

from __future__ import annotations

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = [
    "compressors",
    "compressors.kernels",
    "backends",
    "horovod_comp",
    "deepspeed_comp",
    "deepspeed_comp.gradients",
    "launch",
]


class BuildPackage(build_py):
    """Takes every module of the root but this one."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [(owner, module, path) for owner, module, path in modules if module != "setup"]


setup(
    package_dir={"gradwire": "."},
    packages=["gradwire", *(f"gradwire.{folder}" for folder in FOLDERS)],
    package_data={"gradwire": ["py.typed"]},
    cmdclass={"build_py": BuildPackage},
)
