"""Whether a machine has the memory for all ranks: one that has not would stand still, and others on it too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...compressors.errors import ConfigError
from .names import Name

__all__ = ["check_memory", "needed_bytes"]

#: a rank without a model: Python, torch, Horovod, DeepSpeed
BARE = 700 << 20
#: gradients, parameters, what an exchange has in hand, and memory in pieces that nobody can use; in sizes of the model
SHARED = 8


def needed_bytes(names: Iterable[Name], values: int, trains: bool) -> int:
    """About what a rank needs at most: four of 24.6 million values and all rows had 4.3 to 4.6 GB each."""
    sizes = SHARED + sum(_own_sizes(name) + 3 * trains for name in names)
    return BARE + round(4 * values * sizes)


def _own_sizes(name: Name) -> float:
    """What a row keeps from step to step: DDP its buckets, error feedback a residual, ZeRO 2 parameters."""
    buckets = name.family == "DDP"
    residual = (name.is_ours and name.compressor != "FP16()") or name.compressor.startswith("PowerSGD")
    return buckets + 1.5 * residual + 2 * name.system.endswith("ZeRO 2")


def check_memory(ranks: int, bytes_each: int) -> None:
    """Refuse what does not fit.

    Raises:
        ConfigError: there is less memory than that.
    """
    available = available_bytes()
    if available is not None and ranks * bytes_each > available:
        raise ConfigError(
            f"{ranks} ranks need about {ranks * bytes_each / 1e9:.1f} GB of memory for these rows, and "
            f"{available / 1e9:.1f} GB are free: choose fewer --rows, fewer --hosts or a smaller --model"
        )


def available_bytes() -> int | None:
    """Memory that is free or would be at once; None: the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
