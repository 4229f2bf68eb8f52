"""What a reducer keeps between steps, as plain values and tensors that a file can hold.

The form, version 2::

    {"version": 1, "compressor": repr, "world_size": W, "rank": r, "step": …, "calls": …, "skipped_steps": …,
     "shapes": {name: [sizes]},                 every tensor that the reducer knows
     "residuals": {name: flat fp32},            one value per element
     "servers": {name: {"start": i, "values": flat fp32, "entries": {key: tensor}, "holders": 1}},
     "runs": {name: the same},                  in place of a residual and entries, for a part of the elements
     "counters": {name: {key: number}},         what a codec counts for a tensor
     "entries": {name: {key: tensor}}}          what else it keeps for it

A *server's* values belong to the run of elements, from `start`, that this rank encodes a second time; those of `runs`
to the run that it encodes at all, where ranks of one host share the work; all ranks owe the mean over its holders.
A merged form (`gradwire.backends.merge_states`) has `world_size` 1, `rank` None, no servers and no runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, cast

import torch

from ..compressors import State
from ..compressors.errors import ConfigError

__all__ = ["Server", "Snapshot", "StateDict", "parse"]

VERSION = 2

#: the form above
StateDict = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """What a rank keeps for a run of a tensor."""

    start: int
    values: torch.Tensor
    entries: State
    holders: int = 1


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A form with types; `rank` None: of all ranks together."""

    compressor: str
    world_size: int
    rank: int | None
    step: int
    calls: int
    skipped_steps: int
    shapes: dict[str, tuple[int, ...]]
    residuals: dict[str, torch.Tensor] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    runs: dict[str, Server] = field(default_factory=dict)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    entries: dict[str, State] = field(default_factory=dict)

    def numel(self, name: str) -> int:
        return math.prod(self.shapes[name])

    def form(self) -> StateDict:
        """As plain values and tensors; shares the tensors."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values["shapes"] = {name: list(shape) for name, shape in self.shapes.items()}
        for part in ("servers", "runs"):
            values[part] = {name: vars(server) for name, server in getattr(self, part).items()}
        return {"version": VERSION, **values}


def parse(form: object) -> Snapshot:
    """The snapshot that a form stands for; shares its tensors.

    Raises:
        ConfigError: it is not of this form; the text names the first fault.
    """
    known = ["version", *(one.name for one in fields(Snapshot))]
    values = _mapping("the state", form)
    for key in [*known, *values]:
        require(key in values, f"{key!r} is missing: the keys are {', '.join(known)}")
        require(key in known, f"{key!r} is unknown: the keys are {', '.join(known)}")
    require(values["version"] == VERSION, f"version is {values['version']!r}, this gradwire reads {VERSION}")
    require(isinstance(values["compressor"], str), f"compressor is {values['compressor']!r}, expected text")
    snapshot = Snapshot(
        compressor=values["compressor"],
        rank=None if values["rank"] is None else _whole("rank", values["rank"]),
        **{key: _whole(key, values[key]) for key in ("world_size", "step", "calls", "skipped_steps")},
        shapes={name: _shape(name, shape) for name, shape in _mapping("shapes", values["shapes"]).items()},
        residuals={name: _values(name, tensor) for name, tensor in _mapping("residuals", values["residuals"]).items()},
        servers={name: _server(name, server) for name, server in _mapping("servers", values["servers"]).items()},
        runs={name: _server(name, run) for name, run in _mapping("runs", values["runs"]).items()},
        counters={name: _counts(name, counts) for name, counts in _mapping("counters", values["counters"]).items()},
        entries={name: _tensors(name, entries) for name, entries in _mapping("entries", values["entries"]).items()},
    )
    _check_rank(snapshot)
    _check_sizes(snapshot)
    return snapshot


def require(holds: bool, text: str) -> None:
    """Refuse a state.

    Raises:
        ConfigError: `holds` is False.
    """
    if not holds:
        raise ConfigError(f"this state cannot be used: {text}")


def _check_rank(snapshot: Snapshot) -> None:
    world_size, rank = snapshot.world_size, snapshot.rank
    require(world_size > (rank or 0), f"rank is {rank} of {world_size}")
    merged = rank is None
    require(not merged or world_size == 1, f"rank is None, as in a merged state, and world_size {world_size}, not 1")
    for part in ("servers", "runs"):
        require(
            not (merged and getattr(snapshot, part)), f"rank is None, as in a merged state, and {part} are not empty"
        )


def _check_sizes(snapshot: Snapshot) -> None:
    for part in ("residuals", "servers", "runs", "counters", "entries"):
        for name in getattr(snapshot, part):
            require(name in snapshot.shapes, f"{part} has {name!r}, which shapes lacks")
    for name, values in snapshot.residuals.items():
        numel = snapshot.numel(name)
        require(values.numel() == numel, f"the residual of {name!r} has {values.numel()} values, its shape {numel}")
    for name, server in (*snapshot.servers.items(), *snapshot.runs.items()):
        stop, numel = server.start + server.values.numel(), snapshot.numel(name)
        require(stop <= numel, f"the server of {name!r} ends at element {stop}, the tensor at {numel}")
        require(server.holders > 0, f"the number of holders of {name!r} is 0, expected 1 or more")


def _mapping(what: str, value: object) -> dict[str, Any]:
    require(isinstance(value, dict), f"{what} is a {type(value).__name__}, expected a dict")
    mapping = cast("dict[str, Any]", value)
    for key in mapping:
        require(isinstance(key, str), f"{what} has the key {key!r}, expected text")
    return mapping


def _whole(what: str, value: object) -> int:
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(fits, f"{what} is {value!r}, expected a whole number, 0 or more")
    return cast("int", value)


def _shape(name: str, shape: object) -> tuple[int, ...]:
    require(isinstance(shape, list | tuple), f"the shape of {name!r} is {shape!r}, expected a list of sizes")
    return tuple(_whole(f"a size of {name!r}", size) for size in cast("list[object]", shape))


def _values(name: str, tensor: object) -> torch.Tensor:
    flat = isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32 and tensor.dim() == 1
    require(flat, f"the values of {name!r} are {_described(tensor)}, expected a vector of float32")
    values = cast("torch.Tensor", tensor)
    require(bool(values.isfinite().all()), f"the values of {name!r} are not all finite")
    return values


def _server(name: str, server: object) -> Server:
    values = _mapping(f"the server of {name!r}", server)
    keys = [one.name for one in fields(Server)]
    require(sorted(values) == sorted(keys), f"the server of {name!r} has the keys {sorted(values)}, expected {keys}")
    return Server(
        start=_whole(f"the start of {name!r}", values["start"]),
        values=_values(name, values["values"]),
        entries=_tensors(name, values["entries"]),
        holders=_whole(f"the number of holders of {name!r}", values["holders"]),
    )


def _counts(name: str, counts: object) -> dict[str, int]:
    named = _mapping(f"counters of {name!r}", counts)
    return {key: _whole(f"{key} of {name!r}", count) for key, count in named.items()}


def _tensors(name: str, entries: object) -> State:
    tensors = _mapping(f"entries of {name!r}", entries)
    for key, value in tensors.items():
        require(isinstance(value, torch.Tensor), f"{key} of {name!r} is {_described(value)}, expected a tensor")
    return tensors


def _described(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r:.80}"
