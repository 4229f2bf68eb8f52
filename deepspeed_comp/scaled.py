"""How the momenta of 1-bit LAMB travel: brought to one root mean square, so that one scale can serve all layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from ._host import TIMEOUT
from .averagers import Averager, Fused
from .compressed_allreduce import compressed_allreduce, error_sizes
from .entry import Entry

__all__ = ["OneBuffer", "SCALE", "ScaledFused", "choose_scales"]

#: key of a parameter's state: what its momentum is multiplied with while it travels
SCALE = "scaling_coeff"
#: a momentum this much smaller than the others is not blown up to their size
NEGLIGIBLE = 1e-8


def choose_scales(entries: Sequence[Entry]) -> None:
    """Give every entry the scale that brings its momentum to the mean of all root mean squares in its scope.

    A momentum of zeros keeps its size.
    """
    for members in _by_scope(entries):
        sizes = [_root_mean_square(entry.momentum) for entry in members]
        sums = [
            sum(size for _, size in pairs)  # by group, as DeepSpeed adds them
            for _, pairs in groupby(zip(members, sizes, strict=True), key=lambda pair: id(pair[0].group))
        ]
        mean = sum(sums) / len(sizes)
        for entry, size in zip(members, sizes, strict=True):
            entry.state[SCALE] = mean / size if size > NEGLIGIBLE * mean else 1.0


class ScaledFused(Fused):
    """`Fused` for values that travel scaled."""

    @property
    def worker_errors(self) -> list[torch.Tensor]:
        """What compression left out on this rank, one flat tensor per entry; none before the first exchange."""
        return [values for state in self._states() for values in state["residuals"].values()]

    @property
    def server_errors(self) -> list[torch.Tensor]:
        """The same of the second compression, of the part of an entry that this rank owns."""
        return [server["values"] for state in self._states() for server in state["servers"].values()]

    def average(self, entries: Sequence[Entry], values: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        means = super().average(entries, _multiply(entries, values))
        return None if means is None else _divide(entries, means)

    def _states(self) -> list[dict[str, Any]]:
        return [reducer.state_dict() for reducer in self._reducers.values()]


class OneBuffer(Averager):
    """All entries of a scope in one buffer, with DeepSpeed 0.19.6's numbers, faults included.

    The buffer's padding is never cleared: what it held after the last exchange takes part in the next one.

    Attributes:
        worker_errors: one per scope, none before the first exchange.
        server_errors: likewise.
    """

    def __init__(self) -> None:
        self.worker_errors: list[torch.Tensor] = []
        self.server_errors: list[torch.Tensor] = []
        self._paddings: list[torch.Tensor] = []

    def average(self, entries: Sequence[Entry], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return _divide(entries, self.exchange(entries, _multiply(entries, values)))

    def exchange(self, entries: Sequence[Entry], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`average` without scales."""
        means: dict[str, torch.Tensor] = {}
        by_name = {entry.name: value for entry, value in zip(entries, values, strict=True)}
        for number, members in enumerate(_by_scope(entries)):
            flat = torch.cat([by_name[entry.name].view(-1) for entry in members])
            parts = self._exchange(number, members[0], flat).split([entry.param.numel() for entry in members])
            means |= {entry.name: part for entry, part in zip(members, parts, strict=True)}
        return [means[entry.name].view_as(entry.param) for entry in entries]

    def reset(self) -> None:
        self.drop_errors()
        self._paddings.clear()

    def drop_errors(self) -> None:
        """Forget what compression left out, not what the padding holds."""
        self.worker_errors.clear()
        self.server_errors.clear()

    def _exchange(self, number: int, first: Entry, flat: torch.Tensor) -> torch.Tensor:
        transport, numel = first.scope.transport, flat.numel()
        if transport.world_size == 1:
            return flat
        sizes = error_sizes(numel, transport.world_size)
        if number == len(self._paddings):
            self._paddings.append(flat.new_zeros(sizes.worker - numel))
        if number == len(self.worker_errors):
            self.worker_errors.append(torch.zeros(sizes.worker, device=flat.device))
            self.server_errors.append(torch.zeros(sizes.server, device=flat.device))
        buffer = torch.cat([flat, self._paddings[number]])
        errors = self.worker_errors[number], self.server_errors[number]
        compressed_allreduce(buffer, *errors, transport, count_padding=True, name=first.name, timeout=TIMEOUT)
        self._paddings[number] = buffer[numel:].clone()
        return buffer[:numel]


def _by_scope(entries: Sequence[Entry]) -> list[list[Entry]]:
    keys = dict.fromkeys(entry.scope.key for entry in entries)
    return [[entry for entry in entries if entry.scope.key == key] for key in keys]


def _root_mean_square(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values) / math.sqrt(values.numel()))


def _multiply(entries: Sequence[Entry], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [value.mul_(entry.state[SCALE]) for entry, value in zip(entries, values, strict=True)]


def _divide(entries: Sequence[Entry], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [value.div_(entry.state[SCALE]) for entry, value in zip(entries, values, strict=True)]
