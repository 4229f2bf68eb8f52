"""1-bit LAMB and 0/1 Adam in plain numpy, all ranks at once: the models that the real ones are compared with.

Written from the description of the algorithms, not from their code. Gradients are `grads[step][rank][name]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Exchange", "Floats", "Grads", "Lamb", "ZeroOne"]

Floats = npt.NDArray[Any]
Named = dict[str, Floats]
Grads = Sequence[Sequence[Named]]
BLOCK = 2048


@dataclass
class Exchange:
    """A compressed mean with error feedback, 1 bit per element and the mean magnitude of every block.

    Attributes:
        pieces: by tensor, the runs of elements that ranks own and encode a second time; None: nobody does; a tensor
            that is not named is averaged exactly.
        workers: what the first encoding left out, by tensor and rank.
        servers: what the second one left out, by tensor.
    """

    pieces: Mapping[str, Sequence[tuple[int, int]] | None]
    workers: dict[str, list[Floats]] = field(default_factory=dict)
    servers: dict[str, Floats] = field(default_factory=dict)

    def mean(self, name: str, values: Sequence[Floats]) -> Floats:
        if name not in self.pieces:
            return np.stack(values).mean(0, dtype=np.float32)
        shape, pieces = values[0].shape, self.pieces[name]
        zeros = [np.zeros(values[0].size, np.float32) for _ in values]
        sums = [v.ravel() + e for v, e in zip(values, self.workers.get(name, zeros), strict=True)]
        sent = [encoded(total, pieces) for total in sums]
        self.workers[name] = [total - code for total, code in zip(sums, sent, strict=True)]
        mean = np.stack(sent).mean(0, dtype=np.float32)
        if pieces is None:
            return mean.reshape(shape)
        owed = mean + self.servers.get(name, np.zeros_like(mean))
        answer = encoded(owed, pieces)
        self.servers[name] = owed - answer
        return answer.reshape(shape)


def encoded(values: Floats, pieces: Sequence[tuple[int, int]] | None) -> Floats:
    """Signs times the mean magnitude of each block of each piece."""
    out = np.empty_like(values)
    for low, high in pieces or [(0, values.size)]:
        for start in range(low, high, BLOCK):
            part = values[start : min(start + BLOCK, high)]
            out[start : start + part.size] = np.where(part >= 0, 1, -1) * np.abs(part).mean(dtype=np.float32)
    return out


@dataclass
class Lamb:
    """1-bit LAMB; all ranks hold the same."""

    params: Named
    mean: Callable[[str, Sequence[Floats]], Floats]
    freeze_step: int
    lr: float
    eps: float
    decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    coefficients: tuple[float, float] = (0.01, 10.0)
    coeff_beta: float = 0.9
    factors: tuple[float, float] = (0.5, 4.0)
    threshold: float = 0.1

    def run(self, grads: Grads) -> None:
        self.m = {name: np.zeros_like(p) for name, p in self.params.items()}
        self.v = {name: np.zeros_like(p) for name, p in self.params.items()}
        self.frozen_coefficient, self.factor = dict.fromkeys(self.params, 0.0), dict.fromkeys(self.params, 1.0)
        for number, ranks in enumerate(grads):
            if number == max(1, self.freeze_step):
                self.fresh = {name: v.copy() for name, v in self.v.items()}
                sizes = {name: np.sqrt(np.mean(m.astype(np.float64) ** 2)) for name, m in self.m.items()}
                self.scale = {name: np.mean(list(sizes.values())) / size for name, size in sizes.items()}
            for name in self.params:
                step = self.warm_up if number < max(1, self.freeze_step) else self.compressed
                step(name, [grads[name] for grads in ranks])

    def update(self, name: str) -> tuple[Floats, Floats]:
        direction = self.m[name] / (np.sqrt(self.v[name]) + self.eps)
        return direction, direction + self.decay * self.params[name]

    def warm_up(self, name: str, grads: Sequence[Floats]) -> None:
        b1, b2 = self.betas
        g = np.mean(grads, axis=0)
        self.m[name] = b1 * self.m[name] + (1 - b1) * g
        self.v[name] = b2 * self.v[name] + (1 - b2) * g * g
        _, u = self.update(name)
        sizes = np.linalg.norm(self.params[name]), np.linalg.norm(u)
        c = float(np.clip(sizes[0] / sizes[1], *self.coefficients)) if min(sizes) > 0 else 1.0
        if c != 1:
            self.frozen_coefficient[name] = self.coeff_beta * self.frozen_coefficient[name] + (1 - self.coeff_beta) * c
        self.params[name] = self.params[name] - self.lr * c * u

    def compressed(self, name: str, grads: Sequence[Floats]) -> None:
        (b1, b2), a, before = self.betas, self.scale[name], self.m[name]
        values = [(a * (b1 * before + (1 - b1) * g)).astype(np.float32) for g in grads]
        self.m[name] = self.mean(name, values) / np.float32(a)
        implied = (self.m[name] - b1 * before) / (1 - b1)
        self.fresh[name] = b2 * self.fresh[name] + (1 - b2) * implied**2
        direction, u = self.update(name)
        f = float(np.max((np.sqrt(self.v[name]) + self.eps) / (np.sqrt(self.fresh[name]) + self.eps)))
        if self.decay > 0:
            q = min(1.0, float(np.linalg.norm(direction) / np.linalg.norm(u)))
            f = f * q + 1 - q
        last = self.factor[name]
        f = float(np.clip(np.clip(f, *self.factors), last * (1 - self.threshold), last * (1 + self.threshold)))
        self.factor[name] = f
        self.params[name] = self.params[name] - self.lr * self.frozen_coefficient[name] * f * u


@dataclass
class ZeroOne:
    """0/1 Adam; every rank has its own parameters and momenta. All tensors take the same turns."""

    params: list[Named]
    means: Callable[[str, Sequence[Floats]], Floats]
    after: Callable[[str, Sequence[Floats]], Floats]
    freeze_step: int
    lr: float
    eps: float
    decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    scalers: tuple[int, int] = (16, 32678)
    longest: int = 16

    def run(self, grads: Grads) -> None:
        zeros = {name: np.zeros_like(p) for name, p in self.params[0].items()}
        self.v = dict(zeros)
        self.m, self.sums = [dict(zeros) for _ in self.params], [dict(zeros) for _ in self.params]
        self.intervals, self.turns, self.rates = [1, 1], [0, 0], 0.0
        self.synchronised: list[bool] = []
        for t, ranks in enumerate(grads, start=1):
            frozen = t > max(1, self.freeze_step)
            (self.alone if frozen else self.together)(t, ranks)
            self.count(frozen, t)

    def count(self, frozen: bool, t: int) -> None:
        if frozen or t % self.intervals[0] == 0:
            self.turns[frozen] += 1
        if self.turns[frozen] == self.scalers[frozen]:
            self.turns[frozen] = 0
            self.intervals[frozen] *= 2
            self.intervals[1] = min(self.intervals[1], self.longest)

    def update(self, rank: int, name: str) -> Floats:
        direction = self.m[rank][name] / (np.sqrt(self.v[name]) + self.eps)
        return direction + self.decay * self.params[rank][name]

    def together(self, t: int, ranks: Sequence[Named]) -> None:
        b1, b2 = self.betas
        for name in self.v:
            grads = [grads[name] for grads in ranks]
            exact = t % self.intervals[0] == 0
            g = np.mean(grads, axis=0) if exact else self.means(name, grads)
            if exact:
                self.v[name] = b2 * self.v[name] + (1 - b2) * g * g
            for rank in range(len(ranks)):
                self.m[rank][name] = b1 * self.m[rank][name] + (1 - b1) * g
                self.params[rank][name] = self.params[rank][name] - self.lr * self.update(rank, name)
        self.synchronised.append(True)

    def alone(self, t: int, ranks: Sequence[Named]) -> None:
        b1, _ = self.betas
        for rank, grads in enumerate(ranks):
            for name, g in grads.items():
                self.m[rank][name] = b1 * self.m[rank][name] + (1 - b1) * g
                step = self.lr * self.update(rank, name)
                self.params[rank][name] = self.params[rank][name] - step
                self.sums[rank][name] = self.sums[rank][name] - step
        self.rates += self.lr
        self.synchronised.append(t % self.intervals[1] == 0)
        if self.synchronised[-1]:
            for name in self.v:
                self.synchronise(name)
            self.rates = 0.0

    def synchronise(self, name: str) -> None:
        denominator = (np.sqrt(self.v[name]) + self.eps).astype(np.float32)
        momenta = [-sums[name] * denominator / self.rates for sums in self.sums]
        mean = self.after(name, [momentum.astype(np.float32) for momentum in momenta])
        for rank, params in enumerate(self.params):
            params[name] = params[name] - self.sums[rank][name] - self.rates * mean / denominator
            self.m[rank][name] = mean
            self.sums[rank][name] = np.zeros_like(mean)
