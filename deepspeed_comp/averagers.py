"""Two ways to average momenta over the ranks: all together in buckets, or tensor by tensor as DeepSpeed did it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import torch

from ..backends import GradientReducer, Statistics, merge_states
from ..backends.snapshot import parse
from ..backends.statistics import merge
from ..compressors import Compressor, TensorMeta, kernels
from ..compressors.errors import ConfigError, UsageError
from ._host import TIMEOUT
from .compressed_allreduce import compressed_allreduce, error_sizes
from .engine import Scope
from .entry import Entry

__all__ = ["Averager", "Fused", "PerTensor", "merge_residuals"]


class Averager(ABC):
    """Takes the mean of one tensor per entry over the ranks of its scope; what compression leaves out is kept."""

    @abstractmethod
    def average(self, entries: Sequence[Entry], values: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The means, in the order of the entries, bitwise equal on all ranks; a collective operation.

        Args:
            entries: equally many with equal names on all ranks.
            values: one tensor per entry, in the parameter's shape; their storage is used up.

        Returns:
            None if some rank's value is not finite; then what is kept is as it was.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget what compression left out so far. All ranks must do so."""

    @property
    def statistics(self) -> Statistics:
        """What this rank sent since the last reset.

        Raises:
            UsageError: it is not counted here.
        """
        raise UsageError("what is sent is not counted with legacy=True: leave that out")


class Fused(Averager):
    """All entries of a scope in one message per bucket, with the codecs and the safeguards of `GradientReducer`.

    Args:
        compressor: for every tensor.
        name: prefix of the collectives' names.
        find: the parameter of a name, also one that takes no part any more.
    """

    def __init__(self, compressor: Compressor, name: str, find: Callable[[str], torch.Tensor | None]) -> None:
        self._compressor = compressor
        self._name = name
        self._find = find
        self._reducers: dict[str, GradientReducer] = {}
        self._restored: dict[str, Any] = {}

    def average(self, entries: Sequence[Entry], values: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        for scope, arrivals in _by_scope(entries, values).items():
            reducer = self._reducer(scope, [entry for entry, _ in arrivals])
            reducer.ready_all([(entry.name, value) for entry, value in arrivals], donate=True)
        means = [self._reducers[entry.scope.key].wait(entry.name) for entry in entries]
        # where nothing is compressed, the reducer hands sums on as they are
        return means if all(kernels.all_finite(mean) for mean in means) else None

    def reset(self) -> None:
        self._reducers.clear()
        self._restored.clear()

    @property
    def statistics(self) -> Statistics:
        return merge([reducer.statistics for reducer in self._reducers.values()])

    def state_dict(self) -> dict[str, Any]:
        """The state of every scope's reducer, by the scope's key: of this rank alone."""
        return self._restored | {key: reducer.state_dict() for key, reducer in self._reducers.items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Go on from `state_dict`; reducers take their states when they are made."""
        self.reset()
        self._restored.update(states)

    def _reducer(self, scope: Scope, entries: Sequence[Entry]) -> GradientReducer:
        reducer = self._reducers.get(scope.key)
        if reducer is None:
            name = f"{self._name}.{scope.key}"
            # errors of workers and of servers, as the algorithms have it; two ranks need no server
            exchange = "two_phase" if scope.transport.world_size > 2 else "auto"
            reducer = GradientReducer(self._compressor, scope.transport, name=name, exchange=exchange, timeout=TIMEOUT)
            self._reducers[scope.key] = reducer
        state = self._restored.pop(scope.key, None)
        names = dict.fromkeys([*(parse(state).shapes if state else ()), *(entry.name for entry in entries)])
        if unknown := self._metas(names.keys() - reducer.names, names):
            reducer.register(unknown)
        if state is not None:
            reducer.load_state_dict(state)
        return reducer

    def _metas(self, unknown: Set[str], order: Iterable[str]) -> list[TensorMeta]:
        """In the order in which they were registered before a checkpoint: buckets must be the same."""
        params = [(name, self._find(name)) for name in order if name in unknown]
        return [
            TensorMeta(name=name, shape=tuple(param.shape), dtype=param.dtype)
            for name, param in params
            if param is not None
        ]


class PerTensor(Averager):
    """Every entry by itself, with DeepSpeed 0.19.6's numbers, faults included; errors lie in the entries' states."""

    def average(self, entries: Sequence[Entry], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for entry, value in zip(entries, values, strict=True):
            self._ensure_errors(entry)
            if entry.scope.transport.world_size > 1:
                errors = entry.state["worker_error"], entry.state["server_error"]
                compressed_allreduce(
                    value, *errors, entry.scope.transport, count_padding=True, name=entry.name, timeout=TIMEOUT
                )
        return list(values)

    def reset(self) -> None:
        """Nothing is kept here."""

    def _ensure_errors(self, entry: Entry) -> None:
        state, device = entry.state, entry.param.device
        if "worker_error" in state:
            return
        sizes = error_sizes(entry.param.numel(), entry.scope.transport.world_size)
        state["tensor_size"] = entry.param.numel()
        state["corrected_tensor_size"], state["server_chunk_size"] = sizes.worker, sizes.server
        state["worker_error"] = torch.zeros(sizes.worker, device=device)
        state["server_error"] = torch.zeros(sizes.server, device=device)


def merge_residuals(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`Fused.state_dict` for any number of ranks, from those of all ranks.

    Raises:
        ConfigError: ranks hold different parameters.
    """
    if all(form.get("rank", 0) is None for state in states for form in state.values()):
        return dict(states[0])  # loaded by fewer or more ranks before, and saved again before the first exchange
    for key in sorted({key for state in states for key in state}):
        sizes = {state[key]["world_size"] if key in state else 0 for state in states}
        if sizes != {len(states)}:
            raise ConfigError(
                f"residuals of {len(states)} ranks cannot be redistributed: their {key} parameters are not the same "
                "on all of them, as with experts and pipelines: go on with as many ranks, or remove "
                "gradwire_rank_*.pt from the checkpoint to begin with no residuals"
            )
    return {key: merge_states([state[key] for state in states]) for key in states[0]}


def _by_scope(
    entries: Sequence[Entry], values: Sequence[torch.Tensor]
) -> dict[Scope, list[tuple[Entry, torch.Tensor]]]:
    scopes: dict[Scope, list[tuple[Entry, torch.Tensor]]] = {}
    for entry, value in zip(entries, values, strict=True):
        scopes.setdefault(entry.scope, []).append((entry, value))
    return scopes
