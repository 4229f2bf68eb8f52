"""The repository's root is the package `gradwire`: a folder's path is its import path."""

from setuptools import setup

FOLDERS = ["compressors", "compressors.kernels", "backends", "horovod_comp", "deepspeed_comp", "launch"]

setup(
    package_dir={"gradwire": "."},
    packages=["gradwire", *(f"gradwire.{folder}" for folder in FOLDERS)],
    package_data={"gradwire": ["py.typed"]},
)
