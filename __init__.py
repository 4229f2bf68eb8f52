"""Gradient compression for Horovod and DeepSpeed, on their stock releases."""

from ._version import __version__

__all__ = ["__version__"]
