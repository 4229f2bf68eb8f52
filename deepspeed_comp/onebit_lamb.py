"""1-bit LAMB: LAMB until variance and trust ratios are frozen, then momenta with one bit per element (2104.06069)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .engine import Engine
from .engine_optimizer import Params
from .entry import Entry
from .freezing import FreezingOptimizer
from .options import OneBitLambOptions
from .scaled import SCALE, OneBuffer, ScaledFused, choose_scales

__all__ = ["OneBitLamb", "OnebitLamb"]

#: keys of a parameter's state: the variance that goes on moving, the averaged trust ratio, the factor on it
FRESH, FROZEN, FACTOR = "exp_avg_sq_fresh", "lamb_coeff_freeze", "last_factor"


class OneBitLamb(FreezingOptimizer):
    """LAMB without bias correction; after `freeze_step` steps its variance and trust ratios are frozen.

    From then on momenta are averaged. The gradient that they imply moves a second variance, and where that one
    outgrows the frozen one, or falls behind it, the trust ratio is scaled by a factor that follows. The frozen ratio
    is an average that begins at zero: it needs `freeze_step` to be several times 1 / (1 - coeff_beta).

    Args:
        params: parameters, or groups. Keys of a group: `exp_avg_mask`, by which momenta are multiplied.
        deepspeed: the engine, if it cannot be found among the callers.
        options: those of `OneBitLambOptions`, which are the keys in ds.json.

    Attributes:
        lamb_coeffs: the trust ratio of every parameter in the last step.

    Raises:
        ConfigError: an option is unknown or out of its range, or something in the engine's configuration excludes
            this optimizer.
    """

    needed_state = (*FreezingOptimizer.needed_state, FRESH, FROZEN, FACTOR)

    def __init__(self, params: Params, deepspeed: Engine | None = None, **options: Any) -> None:
        chosen = OneBitLambOptions.read(options)
        self.freeze_step = chosen.freeze_step
        self.coeff_beta = chosen.coeff_beta
        self.factor_max, self.factor_min = chosen.factor_max, chosen.factor_min
        self.factor_threshold = chosen.factor_threshold
        self.lamb_coeffs: list[float] = []
        super().__init__(params, deepspeed, chosen)
        self._scaled = OneBuffer() if self.legacy else ScaledFused(self.compressor, type(self).__name__, self._find)
        self.averager = self._scaled
        for group in self.param_groups:
            group["params"] = [param for param in group["params"] if param.numel() > 0]

    # Names that old scripts use.

    @property
    def lamb_freeze_key(self) -> bool:
        """DeepSpeed's name for `frozen`."""
        return self.frozen

    @lamb_freeze_key.setter
    def lamb_freeze_key(self, value: bool) -> None:
        self.frozen = value

    @property
    def worker_errors(self) -> list[torch.Tensor]:
        """What compression left out on this rank: none before the first compressed step, and after a load."""
        return self._scaled.worker_errors

    @property
    def server_errors(self) -> list[torch.Tensor]:
        """The same of the second compression, of the part that this rank owns."""
        return self._scaled.server_errors

    def get_lamb_coeffs(self) -> list[float]:
        """A copy of `lamb_coeffs`."""
        return list(self.lamb_coeffs)

    # A step.

    def _new_state(self, param: torch.Tensor) -> dict[str, Any]:
        return super()._new_state(param) | {FRESH: torch.zeros_like(param), FROZEN: 0.0, FACTOR: 1.0}

    def _update(self, entries: Sequence[Entry]) -> bool:
        if self.frozen:
            return self._update_frozen(entries)
        for entry in entries:
            entry.accumulate()
        self.lamb_coeffs = [self._descend(entry) for entry in entries]
        return True

    def _update_frozen(self, entries: Sequence[Entry]) -> bool:
        self._enter([entry for entry in entries if SCALE not in entry.state])
        before = [entry.momentum.clone() for entry in entries]
        if not self._average_momenta(entries):
            return False
        self.lamb_coeffs = [self._descend_frozen(entry, old) for entry, old in zip(entries, before, strict=True)]
        return True

    def _enter(self, entries: Sequence[Entry]) -> None:
        """Before the first step with a frozen variance."""
        choose_scales(entries)
        for entry in [] if self.legacy else entries:
            entry.state[FRESH] = entry.variance.clone()
            if entry.scope.transport.world_size == 1:
                entry.state[SCALE] = 1.0  # nothing travels, and nothing is rounded

    def _descend(self, entry: Entry) -> float:
        update = entry.update()
        weight_norm, update_norm = _norm(entry.param), _norm(update)
        coefficient = 1.0
        if weight_norm != 0 and update_norm != 0:
            ratio = float(weight_norm / update_norm)
            coefficient = min(max(ratio, entry.group["min_coeff"]), entry.group["max_coeff"])
        if coefficient != 1.0:
            average = entry.state[FROZEN]
            entry.state[FROZEN] = self.coeff_beta * average + (1 - self.coeff_beta) * coefficient
        entry.descend(update, coefficient)
        return coefficient

    def _descend_frozen(self, entry: Entry, before: torch.Tensor) -> float:
        self._refresh(entry, before)
        direction = entry.direction()
        update = entry.with_decay(direction)
        entry.state[FACTOR] = self._limited(self._factor(entry, direction, update), entry.state[FACTOR])
        coefficient = entry.state[FROZEN] * entry.state[FACTOR]
        entry.descend(update, coefficient)
        return coefficient

    def _refresh(self, entry: Entry, before: torch.Tensor) -> None:
        """Take the gradient that a momentum implies into the variance that goes on moving."""
        beta1, beta2 = entry.group["betas"]
        gradient = (entry.momentum - before * beta1) / (1 - beta1)
        entry.state[FRESH].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)

    def _factor(self, entry: Entry, direction: torch.Tensor, update: torch.Tensor) -> float:
        """How far the frozen variance lags behind; weight decay's share of the update is left alone."""
        ratio = entry.denominator() / (entry.state[FRESH].sqrt() + entry.group["eps"])
        if not self.legacy:
            ratio.masked_fill_(entry.variance == 0, 1.0)
        factor = float(ratio.max())
        if entry.group["weight_decay"] > 0.0:
            share = min(1.0, float(_norm(direction) / _norm(update)))
            factor = factor * share + (1.0 - share)
        return factor

    def _limited(self, factor: float, last: float) -> float:
        factor = min(max(factor, self.factor_min), self.factor_max)
        return min(max(factor, last * (1.0 - self.factor_threshold)), last * (1.0 + self.factor_threshold))

    def _settle(self, entries: Sequence[Entry]) -> None:
        if self.legacy and not self.frozen:
            for entry in entries:
                if entry.state["step"] == self.freeze_step:
                    entry.state[FRESH] = entry.variance.clone()
        super()._settle(entries)

    # Beginnings.

    def _resume(self, step: int) -> None:
        super()._resume(step)
        for state in [] if self.frozen else self.state.values():
            if self.legacy or SCALE in state:
                state.update({FROZEN: 0.0, FACTOR: 1.0})
                state.pop(SCALE, None)

    def _initialise(self, entries: Sequence[Entry]) -> None:
        """Averages the momenta as they are, which are zero unless they were loaded, and forgets the errors."""
        if self.frozen:
            choose_scales([entry for entry in entries if SCALE not in entry.state])
        if isinstance(self._scaled, OneBuffer):
            means = self._scaled.exchange(entries, [entry.momentum.clone() for entry in entries])
            for entry, mean in zip(entries, means, strict=True):
                entry.momentum.copy_(mean)
            self._scaled.drop_errors()
        self._frozen = False


def _norm(values: torch.Tensor) -> torch.Tensor:
    """In the order of operations of DeepSpeed."""
    return values.pow(2).sum().sqrt()


OnebitLamb = OneBitLamb
