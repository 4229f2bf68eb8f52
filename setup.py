"""The repository's root is the package `gradwire`: a folder's path is its import path."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

FOLDERS = [
    "compressors",
    "compressors.kernels",
    "compressors.kernels.native",
    "compressors.kernels.reference",
    "compressors.kernels.triton",
    "backends",
    "horovod_comp",
    "deepspeed_comp",
    "deepspeed_comp.gradients",
    "launch",
    "launch.bench_step",
    "launch.cluster",
]

CSRC = Path("compressors/csrc")
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-pthread", "-g0"]
#: loaded by ctypes: it knows nothing of Python, and one build suits every version. Without a compiler there is none,
#: and the package works all the same; nothing here is tuned to the machine that builds
KERNELS = Extension(
    "gradwire.compressors._kernels",
    sources=sorted(path.as_posix() for path in CSRC.rglob("*.cpp")),
    depends=sorted(path.as_posix() for path in CSRC.rglob("*.h")),
    language="c++",
    extra_compile_args=FLAGS,
    extra_link_args=["-pthread"],
    py_limited_api=True,
    optional=True,
)


class BuildPackage(build_py):
    """Takes every module of the root but this one."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [(owner, module, path) for owner, module, path in modules if module != "setup"]


setup(
    package_dir={"gradwire": "."},
    packages=["gradwire", *(f"gradwire.{folder}" for folder in FOLDERS)],
    package_data={"gradwire": ["py.typed"]},
    ext_modules=[KERNELS],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
    cmdclass={"build_py": BuildPackage},
)
