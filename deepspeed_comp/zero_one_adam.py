"""0/1 Adam: Adam whose variance, and later whose momentum too, is averaged ever more rarely (2202.06009)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from deepspeed.ops.adam import FusedAdam

from ..compressors import kernels
from .engine import Engine
from .engine_optimizer import Params
from .entry import Entry
from .freezing import FreezingOptimizer
from .intervals import lengthen, moves_variance, new_intervals, synchronises
from .local_steps import ANCHOR, RATES, UPDATES, ahead, begins, heed_changes, mean_momentum, rates
from .options import ZeroOneAdamOptions

__all__ = ["ZeroOneAdam"]


class ZeroOneAdam(FreezingOptimizer, FusedAdam):
    """Adam without bias correction, in two phases.

    Up to `var_freeze_step` the variance moves at every k-th step, for which the engine averages gradients; in the
    steps between, gradients are averaged compressed and move the momentum only. k doubles after every
    `var_update_scaler` moves of the variance.

    Then the variance is frozen, ranks step by themselves, and every h-th step is a synchronisation: the ranks' sums
    of updates are averaged compressed, and give parameters and momentum that are bitwise equal on all ranks. They
    travel as the momentum that they stand for, so that a learning rate may change at any time. h doubles after every
    `local_step_scaler` steps, up to `local_step_clipper`.

    Between synchronisations the ranks' parameters and momenta differ on purpose. What `state_dict` holds is then that
    of one rank, rank 0's in DeepSpeed's checkpoints, and a valid place to go on from; what differs is in `rank_state`.
    A step without an exchange counts on all ranks; one whose gradient is not finite leaves out its own part.

    As in DeepSpeed 0.19.6, weight decay is part of the updates that become momentum: once the variance is frozen it
    acts up to 1 / (1 - beta1) times as strongly as before.

    A `FusedAdam` only in name: DeepSpeed's 16-bit wrappers flatten the groups of that class, as they did for its own
    0/1 Adam.

    Args:
        params: parameters, or groups. Keys of a group: `exp_avg_mask`, by which averages are multiplied.
        deepspeed: the engine, if it cannot be found among the callers.
        options: those of `ZeroOneAdamOptions`, which are the keys in ds.json.

    Raises:
        ConfigError: an option is unknown or out of its range, or something in the engine's configuration excludes
            this optimizer.
    """

    def __init__(self, params: Params, deepspeed: Engine | None = None, **options: Any) -> None:
        chosen = ZeroOneAdamOptions.read(options)
        self.freeze_step = chosen.var_freeze_step + chosen.legacy  # 0.19.6 counts its first call, which only prepares
        self.var_update_scaler = chosen.var_update_scaler
        self.local_step_scaler = chosen.local_step_scaler
        self.local_step_clipper = chosen.local_step_clipper
        self._cleared = False
        super().__init__(params, deepspeed, chosen)

    # Names that old scripts use.

    @property
    def var_freeze_step(self) -> int:
        """The last step that may change the variance."""
        return self.freeze_step - self.legacy

    @var_freeze_step.setter
    def var_freeze_step(self, value: int) -> None:
        self.freeze_step = value + self.legacy

    @property
    def freeze_key(self) -> bool:
        """DeepSpeed's name for `frozen`; it had `var_freeze_key` too."""
        return self.frozen

    @freeze_key.setter
    def freeze_key(self, value: bool) -> None:
        self.frozen = value

    var_freeze_key = freeze_key

    # A step.

    def _new_state(self, param: torch.Tensor) -> dict[str, Any]:
        return super()._new_state(param) | self._schedule(param)

    def _schedule(self, param: torch.Tensor) -> dict[str, Any]:
        return new_intervals() | {RATES: 0.0, UPDATES: torch.zeros_like(param)}

    def _is_promising(self, entries: Sequence[Entry]) -> bool:
        alone = not self.legacy and self.frozen and not self._synchronises(entries)
        return alone or super()._is_promising(entries)

    def _update(self, entries: Sequence[Entry]) -> bool:
        if not self.frozen:
            return self._update_together(entries)
        if self.legacy:
            self._update_as_before(entries)
            return True
        return self._synchronise(entries) if self._synchronises(entries) else self._update_alone(entries)

    def _average(self, entries: Sequence[Entry], values: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Compressed means, masked; their storage is used up."""
        if not self.legacy:
            values = [entry.mask(value, untouched=True) for entry, value in zip(entries, values, strict=True)]
        means = self.averager.average(entries, values)
        for entry, mean in zip(entries, means or (), strict=False):
            if not (self.legacy and _is_alone(entry)):
                entry.mask(mean, untouched=not self.legacy)
        return means

    # Before the variance is frozen.

    def _moves_variance(self, entry: Entry) -> bool:
        """A parameter that is new in a step whose gradients the engine has not averaged waits for the next one."""
        return moves_variance(entry.state) and (self.legacy or self.reduced)

    def _update_together(self, entries: Sequence[Entry]) -> bool:
        resting = [entry for entry in entries if not self._moves_variance(entry)]
        means = self._average(resting, [entry.grad.clone() for entry in resting])
        if means is None:
            return False
        for entry, mean in zip(resting, means, strict=True):
            entry.grad = mean
        for entry in entries:
            if self._moves_variance(entry):
                entry.accumulate()
            elif not (self.legacy and _is_alone(entry)):
                entry.momentum.copy_(entry.next_momentum())
            entry.descend(entry.update())
        return True

    # After it.

    def _synchronises(self, entries: Sequence[Entry]) -> bool:
        return any(synchronises(entry.state) for entry in entries)

    def _update_alone(self, entries: Sequence[Entry]) -> bool:
        finite = all(kernels.all_finite(entry.grad) for entry in entries)
        for entry in entries:
            state = entry.state
            heed_changes(entry)
            if ANCHOR not in state:
                state[ANCHOR] = entry.param.clone()
            if finite:
                momentum, updates = ahead(entry)
                entry.momentum.copy_(momentum)
                state[UPDATES].copy_(updates)
                entry.param.copy_(state[ANCHOR] + updates)
            state[RATES] = rates(entry)
        return True

    def _synchronise(self, entries: Sequence[Entry]) -> bool:
        for entry in entries:
            heed_changes(entry)
        means = self._average(entries, [mean_momentum(entry) for entry in entries])
        if means is None:
            return False
        for entry, mean in zip(entries, means, strict=True):
            self._agree(entry, mean)
        return True

    def _agree(self, entry: Entry, momentum: torch.Tensor) -> None:
        """Go from where the ranks last agreed by the updates that the mean momentum stands for."""
        state = entry.state
        step = entry.mask(momentum * -rates(entry) / entry.denominator(), untouched=True)
        entry.param.copy_(state.pop(ANCHOR, entry.param) + step)
        entry.momentum.copy_(momentum)
        state[UPDATES].zero_()
        state[RATES] = 0.0

    def _update_as_before(self, entries: Sequence[Entry]) -> None:
        """With the numbers of 0.19.6, for which ranks agree only up to rounding."""
        for entry in entries:
            entry.momentum.copy_(entry.next_momentum())
            entry.state[RATES] = rates(entry)
            update = entry.update()
            entry.descend(update)
            entry.state[UPDATES].add_(-entry.group["lr"] * update)
        due = [entry for entry in entries if synchronises(entry.state)]
        for entry in due:
            entry.param.add_(-1 * entry.state[UPDATES])
        means = self._average(due, [entry.state[UPDATES] * entry.denominator() for entry in due]) or []
        for entry, mean in zip(due, means, strict=True):
            entry.momentum.zero_().add_(mean / entry.state[RATES], alpha=-1)
            entry.param.add_(mean / entry.denominator())
            entry.state[UPDATES].zero_()
            entry.state[RATES] = 0.0

    # What the next step is like.

    def _settle(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._count(entry.state)
        if not self.frozen:
            self.reduced = any(moves_variance(entry.state) for entry in entries)
        super()._settle(entries)
        if self.frozen and not self._cleared:
            self._clear(entries)

    def _count(self, state: dict[str, Any]) -> None:
        if self.frozen:
            lengthen(state, "local_step", self.local_step_scaler, self.local_step_clipper)
        elif state["step"] % state["var_interval"] == 0:
            lengthen(state, "var", self.var_update_scaler)

    def _clear(self, entries: Sequence[Entry]) -> None:
        """What compression left out so far was of gradients, and updates come next."""
        self.averager.reset()
        for entry in entries:
            for key in self.local_state:
                if key in entry.state:
                    entry.state[key].zero_()
        self._cleared = True

    # Beginnings.

    def _initialise(self, entries: Sequence[Entry]) -> None:
        """Averages zeros, and forgets what it left out; a load has begun the schedule anew already."""
        self._frozen = False

    def _resume(self, step: int) -> None:
        if self.legacy:
            self._resume_as_before(step)
            return
        super()._resume(step)
        self._cleared = self.frozen
        for param, state in self.state.items():
            if not self.frozen:
                state.pop(ANCHOR, None)
            fresh = self._schedule(param)
            state.update({key: value for key, value in fresh.items() if key not in state or begins(key, state)})
        if not self.frozen:
            self.reduced = any(map(moves_variance, self.state.values()))

    def _resume_as_before(self, step: int) -> None:
        """As 0.19.6, which begins its schedule anew, and goes on with local gradients as if they were averages."""
        self.reduced = step < self.var_freeze_step and any(map(moves_variance, self.state.values()))
        self._cleared = False
        for param, state in self.state.items():
            state.pop(ANCHOR, None)
            state.update(self._schedule(param))

    # What is kept of this rank alone.

    def rank_state(self) -> dict[str, Any]:
        """Residuals, and between synchronisations also this rank's parameters and momenta."""
        own = {key: tensor.detach().clone() for key, tensor in self._own().items()}
        return super().rank_state() | {"frozen": self.frozen, "own": own}

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        if state["frozen"] == self.frozen:  # else `var_freeze_step` was changed: residuals are of something else
            super().load_rank_state(state)
        for key, tensor in self._own().items():
            tensor.detach().copy_(state["own"][key])

    def merge_rank_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The means of all that ranks have for themselves: those of parameters are where their mean update leads."""
        own = {key: torch.stack([state["own"][key] for state in states]).mean(0) for key in states[0]["own"]}
        return super().merge_rank_states(states) | {"frozen": states[0]["frozen"], "own": own}

    def _own(self) -> dict[str, torch.Tensor]:
        """What differs from rank to rank right now, by name; a 16-bit model has parameters besides the optimizer's."""
        states = {self._name(param): (param, state) for param, state in self.state.items() if ANCHOR in state}
        if not states or self.deepspeed is None:
            return {}
        values = {f"{name}.{key}": state[key] for name, (_, state) in states.items() for key in ("exp_avg", UPDATES)}
        own = {name: param for name, (param, _) in states.items()}
        return dict(self.deepspeed.module.named_parameters()) | own | values


def _is_alone(entry: Entry) -> bool:
    return entry.scope.transport.world_size == 1
