"""What was measured of each row on every rank, and what is reported of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from .names import Name, baseline

__all__ = ["Losses", "Sample", "summaries"]

Losses = list[float]


class Sample(NamedTuple):
    """One timed step on one rank.

    Attributes:
        seconds: from a barrier to the end of the step.
        link_bytes: what the host has sent meanwhile, by its kernel's count; None: there is no such interface.
        codec_seconds: as gradwire tells; None for other rows.
        wait_seconds: likewise.
        counted_bytes: likewise.
    """

    seconds: float
    link_bytes: int | None = None
    codec_seconds: float | None = None
    wait_seconds: float | None = None
    counted_bytes: int | None = None


def summaries(
    names: Sequence[Name], samples: Mapping[Name, Sequence[Sequence[Sample]]], ranks_per_host: int
) -> list[dict[str, Any]]:
    """A row's numbers: medians over the rounds; of the ranks the slowest counts for the time, for all else their mean.

    Args:
        samples: of each row, of each rank, of each round.
    """
    found = {name: _summary(name, list(zip(*samples[name], strict=True)), ranks_per_host) for name in names}
    for name, row in found.items():
        row["compute_s"] = found[baseline(name)]["step_s"]
        row["cost_s"] = row["step_s"] - row["compute_s"]
    return list(found.values())


def _summary(name: Name, rounds: Sequence[Sequence[Sample]], ranks_per_host: int) -> dict[str, Any]:
    sent = _typical(rounds, "link_bytes")
    seconds = [max(sample.seconds for sample in ranks) for ranks in rounds]
    return {
        "system": name.system,
        "compressor": name.compressor,
        "step_s": median(seconds),
        "compute_s": None,
        "cost_s": None,
        "exposed_s": _typical(rounds, "wait_seconds"),
        "codec_s": _typical(rounds, "codec_seconds"),
        "bytes_sent": None if sent is None else round(sent / ranks_per_host),
        "bytes_counted": _typical(rounds, "counted_bytes"),
        "steps_s": seconds,
    }


def _typical(rounds: Sequence[Sequence[Sample]], key: str) -> float | None:
    """The median over the rounds of the mean over the ranks; None where it is not known."""
    values = [[getattr(sample, key) for sample in ranks] for ranks in rounds]
    return None if any(None in ranks for ranks in values) else median(map(fmean, values))
