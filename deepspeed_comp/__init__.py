"""Gradient compression for DeepSpeed.

Nothing is here yet: the 1-bit optimizers, the 1-bit-style communication backends and gradient compression at every
ZeRO stage are being built on the reducers of `gradwire.backends`.
"""

from __future__ import annotations

__all__: list[str] = []
