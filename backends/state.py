"""From what a reducer keeps to the form of `snapshot`, and back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch

from ..compressors import Compressor, State
from ..compressors.memory import RESIDUAL
from .registry import Registry
from .runs import Run
from .snapshot import Server, Snapshot, StateDict, parse, require
from .transport import Transport

__all__ = ["Kept", "adopted", "check_shapes", "owed", "registered", "restored", "saved"]


class Kept(NamedTuple):
    """What a reducer keeps on one rank.

    Attributes:
        step: applied steps.
        calls: what its codecs take for the step: applied steps too, or applied calls.
        skipped_steps: steps that were not applied.
        shapes: of all tensors that it knows.
        workers: by tensor, what is kept for all its elements, or for the run of them that this rank encodes.
        servers: by tensor, what is kept for the run of its elements that this rank encodes a second time.
        merged: it is of all ranks together.
    """

    step: int
    calls: int
    skipped_steps: int
    shapes: Mapping[str, tuple[int, ...]]
    workers: Mapping[str, Run]
    servers: Mapping[str, Run]
    merged: bool = False


def saved(kept: Kept, compressor: Compressor, transport: Transport) -> StateDict:
    """The form of this rank; its tensors are copies."""
    names = [name for name in kept.shapes if name in kept.workers or name in kept.servers]
    runs = {name: run for name, run in kept.workers.items() if run.holders is not None}
    states = {name: run.state for name, run in kept.workers.items() if name not in runs}
    counted = [{name: run.state for name, run in part.items()} for part in (kept.workers, kept.servers)]
    counters = {name: _counts([states.get(name, {}) for states in counted], compressor) for name in names}
    entries = {name: _others(state, compressor) for name, state in states.items()}
    return Snapshot(
        compressor=repr(compressor),
        world_size=transport.world_size,
        rank=transport.rank,
        step=kept.step,
        calls=kept.calls,
        skipped_steps=kept.skipped_steps,
        shapes=dict(kept.shapes),
        residuals={name: state[RESIDUAL].clone() for name, state in states.items() if RESIDUAL in state},
        servers=_servers(kept.servers, compressor),
        runs=_servers(runs, compressor),
        counters={name: counts for name, counts in counters.items() if counts},
        entries={name: others for name, others in entries.items() if others},
    ).form()


def restored(form: object, compressor: Compressor, transport: Transport) -> Kept:
    """What a form says that this rank keeps; its tensors are copies, on the devices where those of the form are.

    Raises:
        ConfigError: it is malformed, of another compressor, or of another rank or world size and not merged.
    """
    snapshot = parse(form)
    here = repr(compressor)
    require(snapshot.compressor == here, f"compressor is {snapshot.compressor}, this reducer has {here}")
    if snapshot.rank is not None:
        require(
            (snapshot.rank, snapshot.world_size) == (transport.rank, transport.world_size),
            f"it is of rank {snapshot.rank} of {snapshot.world_size}, this is rank {transport.rank} of "
            f"{transport.world_size}: give merge_states() those of all {snapshot.world_size} ranks, and load that",
        )
    counting = snapshot.rank is not None or transport.rank == 0
    states = {name: _state(snapshot, name, counting=counting) for name in snapshot.shapes}
    return Kept(
        snapshot.step,
        snapshot.calls,
        snapshot.skipped_steps,
        snapshot.shapes,
        {name: Run(0, snapshot.numel(name), state) for name, state in states.items() if state}
        | {name: _run(run, compressor, states[name]) for name, run in snapshot.runs.items()},
        {name: _run(server, compressor) for name, server in snapshot.servers.items()},
        snapshot.rank is None,
    )


def check_shapes(
    theirs: Mapping[str, tuple[int, ...]], ours: Mapping[str, tuple[int, ...]], names: Collection[str]
) -> None:
    """Compare the tensors of a state with those here, as far as `names` go.

    Raises:
        ConfigError: one has another shape, or is missing on one side; the text names the first.
    """
    for name in sorted(names):
        there, here = (shapes.get(name, "not there") for shapes in (theirs, ours))
        require(there == here, f"tensor {name!r} is {there} in it, and {here} in this reducer")


def registered(
    registry: Registry, states: Mapping[str, State], servers: Mapping[str, State], step: int, skipped: int
) -> Kept:
    """What a reducer keeps for the tensors that were registered with it, after `step` applied steps."""
    shapes = {name: entry.shape for name, entry in registry.entries.items()}
    workers = {
        name: Run(*_kept_range(registry, name), state, _holders(registry, name)) for name, state in states.items()
    }
    answers = {name: Run(*_own_range(registry, name), state) for name, state in servers.items()}
    return Kept(step, step, skipped, shapes, workers, answers)


def owed(registry: Registry, name: str, state: State, server: State, device: torch.device) -> torch.Tensor:
    """A rank's part of what all owe for a tensor, in its shape."""
    place, meta = registry.entries[name].place, registry.metas[name]
    exchange, total = registry.exchanges[place.bucket], torch.zeros(meta.numel, device=device)
    if RESIDUAL in state:
        total[exchange.kept_range(place.slot)] += state[RESIDUAL] / exchange.holders
    if RESIDUAL in server:
        total[exchange.own_range(place.slot)] += server[RESIDUAL]
    return total.view(meta.shape)


def adopted(kept: Kept, registry: Registry, compressor: Compressor) -> tuple[dict[str, State], dict[str, State]]:
    """What is kept for the registered tensors, and for this rank's shards of them, in a reducer's form.

    Raises:
        ConfigError: other tensors are registered, or the buckets cut them otherwise.
    """
    shapes = {name: entry.shape for name, entry in registry.entries.items()}
    check_shapes(kept.shapes, shapes, kept.shapes.keys() | shapes.keys())
    for runs, range_of in ((kept.servers, _own_range), (kept.workers, _kept_range)):
        for name, run in runs.items():
            whole, here = (0, math.prod(shapes[name])), range_of(registry, name)
            # what a merged state has, of all elements, is cut
            require(
                (run.low, run.high) in ((here, whole) if kept.merged else (here,)),
                f"this rank's part of {name!r} is {run.low}:{run.high} in it, and {here[0]}:{here[1]} in this reducer, "
                "whose bucket_bytes, exchange or order of tensors is another: give merge_states() those of all ranks",
            )
    states = {name: _cut(run, *_kept_range(registry, name), compressor) for name, run in kept.workers.items()}
    # a residual from a run with more ranks may be of a tensor that travels as it is here
    registry.stateful |= {name: registry.entries[name].place for name, state in states.items() if state}
    return states, {name: run.state for name, run in kept.servers.items()}


def _cut(run: Run, low: int, high: int, compressor: Compressor) -> State:
    if (run.low, run.high) == (low, high):
        return run.state
    # a copy, so that the rest is let go
    return {key: value.clone() for key, value in run.cut(low, high, compressor, torch.device("cpu")).items()}


def _kept_range(registry: Registry, name: str) -> tuple[int, int]:
    place = registry.entries[name].place
    kept = registry.exchanges[place.bucket].kept_range(place.slot)
    return kept.start, kept.stop


def _holders(registry: Registry, name: str) -> int | None:
    exchange = registry.exchanges[registry.entries[name].place.bucket]
    return exchange.holders if exchange.keeps_runs else None


def _own_range(registry: Registry, name: str) -> tuple[int, int]:
    place = registry.entries[name].place
    own = registry.exchanges[place.bucket].own_range(place.slot)
    return own.start, own.stop


def _counts(states: Sequence[State], compressor: Compressor) -> dict[str, int]:
    keys = sorted({key for state in states for key in state if key in compressor.counters})
    return {key: sum(int(state[key]) for state in states if key in state) for key in keys}


def _others(state: State, compressor: Compressor) -> State:
    return {key: value.clone() for key, value in state.items() if key not in compressor.counters | {RESIDUAL}}


def _servers(runs: Mapping[str, Run], compressor: Compressor) -> dict[str, Server]:
    """Those in which something is kept."""
    servers = {name: _server(run, compressor) for name, run in runs.items()}
    return {name: server for name, server in servers.items() if server.values.numel() or server.entries}


def _server(run: Run, compressor: Compressor) -> Server:
    values = run.state[RESIDUAL].clone() if RESIDUAL in run.state else torch.empty(0)
    return Server(run.low, values, _others(run.state, compressor), run.holders or 1)


def _state(snapshot: Snapshot, name: str, *, counting: bool) -> State:
    state = {key: value.clone() for key, value in snapshot.entries.get(name, {}).items()}
    if name in snapshot.residuals:
        state[RESIDUAL] = snapshot.residuals[name].clone()
    if counting:
        state |= {key: torch.tensor(count) for key, count in snapshot.counters.get(name, {}).items()}
    return state


def _run(server: Server, compressor: Compressor, also: State | None = None) -> Run:
    state = {key: value.clone() for key, value in server.entries.items()} | (also or {})
    if server.values.numel():
        state[RESIDUAL] = server.values.clone()
    length = next((value.numel() for key, value in state.items() if key in compressor.elementwise_state), 0)
    return Run(server.start, server.start + length, state, server.holders)
