"""One state from those of all ranks, for another number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..compressors import State
from .snapshot import Snapshot, StateDict, parse, require

__all__ = ["merge_states"]

#: what the ranks of one job have in common at one step
SHARED = ("compressor", "world_size", "step", "calls", "skipped_steps", "shapes")


def merge_states(forms: Sequence[StateDict]) -> StateDict:
    """One form from those of all ranks, which a reducer of any world size can load.

    What is owed stays the same: a tensor's new residual is the mean of the ranks' residuals, plus the values of
    servers and runs where they belong (summed in fp64). Counters add up, and rank 0 gets them. Of what else a codec
    keeps for a tensor, values by element are averaged, and other entries are rank 0's; what servers and runs keep of
    it is left out.

    Args:
        forms: what `state_dict` gave on each rank, in any order.

    Raises:
        ConfigError: a form is malformed, or they are not those of all ranks of one job at one step.
    """
    ranks = _in_order([parse(form) for form in forms])
    first = ranks[0]
    return replace(
        first,
        world_size=1,
        rank=None,
        servers={},
        runs={},
        residuals={name: _residual(name, ranks) for name in first.shapes if _owes(name, ranks)},
        counters={name: counts for name in first.shapes if (counts := _counters(name, ranks))},
        entries={name: _entries(name, ranks) for name in first.entries},
    ).form()


def _in_order(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    by_rank = {snapshot.rank: snapshot for snapshot in snapshots}
    require(None not in by_rank, "it is merged already")
    require(len(by_rank) > 0, "there is none to merge")
    first = snapshots[0]
    for other in snapshots[1:]:
        for key in SHARED:
            here, there = getattr(first, key), getattr(other, key)
            require(here == there, f"{key} is {here} on rank {first.rank} and {there} on rank {other.rank}")
    ranks = sorted(rank for rank in (one.rank for one in snapshots) if rank is not None)
    whole = list(range(first.world_size))
    require(ranks == whole, f"states of ranks {ranks} were given, expected one of each of {whole}")
    return [by_rank[rank] for rank in whole]


def _owes(name: str, ranks: Sequence[Snapshot]) -> bool:
    return any(name in kept for one in ranks for kept in (one.residuals, one.servers, one.runs))


def _residual(name: str, ranks: Sequence[Snapshot]) -> torch.Tensor:
    total = torch.zeros(ranks[0].numel(name), dtype=torch.float64)
    for one in ranks:
        if name in one.residuals:
            total += one.residuals[name].to(total) / len(ranks)
        for run in (kept[name] for kept in (one.servers, one.runs) if name in kept):
            total[run.start : run.start + run.values.numel()] += run.values.to(total) / run.holders
    return total.float()


def _counters(name: str, ranks: Sequence[Snapshot]) -> dict[str, int]:
    counters = [one.counters.get(name, {}) for one in ranks]
    return {key: sum(counts.get(key, 0) for counts in counters) for key in sorted({k for c in counters for k in c})}


def _entries(name: str, ranks: Sequence[Snapshot]) -> State:
    return {key: _entry(name, key, ranks) for key in ranks[0].entries[name]}


def _entry(name: str, key: str, ranks: Sequence[Snapshot]) -> torch.Tensor:
    values = [one.entries[name][key] for one in ranks if key in one.entries.get(name, {})]
    by_element = all(v.dtype == torch.float32 and v.shape == (ranks[0].numel(name),) for v in values)
    if not by_element:
        return values[0].clone()
    return (torch.stack([value.double() for value in values]).sum(0) / len(ranks)).float()
