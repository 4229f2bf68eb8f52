"""What the 1-bit optimizers share: the order of a step, first calls and what a load restores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from ..backends import Statistics
from ..backends.statistics import merge
from ..compressors import Compressor, NoCompression, OneBit, SizePolicy
from ..compressors.errors import UnsupportedError
from ._host import TIMEOUT
from .averagers import Averager, Fused, PerTensor, merge_residuals
from .checkpoint import follow
from .engine import Engine
from .engine_optimizer import EngineOptimizer, Params
from .entry import MASK, Entry
from .groups import check_state
from .options import MomentumOptions

__all__ = ["MomentumOptimizer"]


class MomentumOptimizer(EngineOptimizer):
    """An optimizer that tells its DeepSpeed engine when to stop averaging gradients, and averages momenta instead.

    By default a step counts on all ranks or on none: where a gradient of some rank is not finite, no parameter, state
    or residual moves, and `overflow` is True, so that the engine counts a skipped step. A parameter without a
    gradient has a gradient of zeros. With `legacy` everything is as in DeepSpeed 0.19.6.

    A subclass writes `_update`, `_settle` and `_resume`, `_initialise` for `legacy`, and may extend `_new_state`.

    Args:
        params: as for every optimizer of torch.
        deepspeed: the engine; found among the callers if it is None, now or at the first step.
        options: checked already.

    Raises:
        ConfigError: ZeRO is on, or experts are in a group that is not marked as theirs.
    """

    #: how momenta are compressed by default; a 16-bit model is one long vector, so the number of dimensions says little
    compressor: ClassVar[Compressor] = SizePolicy(OneBit(), min_ndim=1)
    #: entries of a parameter's state that are of one rank alone; a load drops them
    local_state: ClassVar[tuple[str, ...]] = ("worker_error", "server_error")
    #: entries that a loaded state must have
    needed_state: ClassVar[tuple[str, ...]] = ("step", "exp_avg", "exp_avg_sq")

    def __init__(self, params: Params, deepspeed: Engine | None, options: MomentumOptions) -> None:
        EngineOptimizer.__init__(self, params, options)
        self.overflow = False
        self._initialised = False
        name = type(self).__name__
        self.averager: Averager = PerTensor() if options.legacy else Fused(self.compressor, name, self._find)
        self.exact = Fused(NoCompression(), f"{name}.exact", self._find)
        self.meet(deepspeed)

    # What a subclass writes.

    @abstractmethod
    def _update(self, entries: Sequence[Entry]) -> bool:
        """Take a step; False, and nothing has moved, if a value of some rank was not finite.

        The steps counted in the entries' states are those before this one, with `legacy` too.
        """

    @abstractmethod
    def _settle(self, entries: Sequence[Entry]) -> None:
        """After a step that counts, and is counted: decide what the next one is like."""

    @abstractmethod
    def _resume(self, step: int) -> None:
        """After a load of a state that counts `step` steps: decide what the next one is like."""

    @abstractmethod
    def _initialise(self, entries: Sequence[Entry]) -> None:
        """0.19.6's first call of a process, which moves no parameter, and is counted already; for `legacy`."""

    def _new_state(self, param: torch.Tensor) -> dict[str, Any]:
        """A parameter's state before the first step."""
        return {"step": 0, "exp_avg": torch.zeros_like(param), "exp_avg_sq": torch.zeros_like(param)}

    # What a subclass uses.

    @property
    def statistics(self) -> Statistics:
        """What this rank sent besides the engine's own averages of gradients. UsageError with `legacy`: not counted."""
        return merge([self.averager.statistics, self.exact.statistics])

    def _average_momenta(self, entries: Sequence[Entry]) -> bool:
        """Replace momenta by the mean of all ranks' next momenta; False, and nothing has moved, if not finite.

        Coordinates that are masked, or whose variance is 0, are not fed with gradients, and stay zero.
        """
        momenta = [entry.next_momentum() for entry in entries]
        if not self.legacy:
            momenta = [entry.mask(value, untouched=True) for entry, value in zip(entries, momenta, strict=True)]
        means = self.averager.average(entries, momenta)
        if means is None:
            return False
        for entry, mean in zip(entries, means, strict=True):
            entry.momentum.copy_(entry.mask(mean, untouched=not self.legacy))
        return True

    def _average_gradients(self, entries: Sequence[Entry]) -> bool:
        """Replace gradients by their exact means; False if not finite."""
        means = self.exact.average(entries, [entry.grad.clone() for entry in entries])
        for entry, mean in zip(entries, means or (), strict=False):
            entry.grad = mean
        return means is not None

    # A step.

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step. A first one whose gradients are all zero only makes states: DeepSpeed's wrappers do that.

        Raises:
            UsageError: there is no DeepSpeed engine.
            UnsupportedError: a gradient is sparse.
            TransportError, MismatchError, PeerError: ranks could not average; the step did not happen.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.meet()
        with torch.no_grad():
            self._advance(self._entries())
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's."""
        torch.optim.Optimizer.zero_grad(self, set_to_none)

    def _advance(self, entries: Sequence[Entry]) -> None:
        new = [entry for entry in entries if not entry.state]
        self._admit(new)
        if self.legacy and not self._initialised:
            for entry in entries:
                entry.count()
            self._initialise(entries)
            self._initialised = True
        elif self.legacy or len(new) < len(entries) or any(bool(entry.grad.any()) for entry in entries):
            self.overflow = not (self._is_promising(entries) and self._update(entries))
            if not self.overflow:
                for entry in entries:
                    entry.count()
                self._settle(entries)

    def _admit(self, new: Sequence[Entry]) -> None:
        """Make states for parameters that take part for the first time."""
        for entry in new:
            entry.state.update(self._new_state(entry.param))

    def _is_promising(self, entries: Sequence[Entry]) -> bool:
        """False if all ranks know already that the step must not count.

        Reduced gradients are equal on all ranks of a scope; others are looked at when they are exchanged. But ranks
        that share one scope must decide alike about all of theirs.
        """
        scopes = {entry.scope.key for entry in entries}
        if self.legacy or (len(scopes) < 2 and not self.reduced):
            return True
        fine = all(entry.usable for entry in entries)
        return fine if len(scopes) < 2 else self._all_agree(fine)

    def _all_agree(self, fine: bool) -> bool:
        transport = self._known_scopes.dense.transport
        doubts = torch.tensor([0 if fine else 1], dtype=torch.int32, device=self.param_groups[0]["params"][0].device)
        return int(transport.all_reduce(doubts, f"{type(self).__name__}.finite").wait(TIMEOUT)) == 0

    def _entries(self) -> list[Entry]:
        """The parameters of this step: all of them; with `legacy` those that have a gradient."""
        return [
            self._entry(group, param)
            for group in self.param_groups
            for param in group["params"]
            if param.requires_grad and param.numel() > 0 and not (self.legacy and param.grad is None)
        ]

    def _entry(self, group: dict[str, Any], param: torch.Tensor) -> Entry:
        scope = self._known_scopes.of(group)
        name = self._name(param)
        grad = torch.zeros_like(param) if param.grad is None else param.grad
        if grad.is_sparse:
            raise UnsupportedError(
                f"{type(self).__name__} got a sparse gradient for {name!r}: make the embedding with sparse=False"
            )
        if not (self.legacy or self.reduced or scope.factor == 1.0):
            grad = grad * scope.factor
        return Entry(name, group, param, grad, self.state[param], scope)

    # What is saved and loaded.

    def _met(self, engine: Engine) -> None:
        if not self.legacy:
            follow(engine, type(self).__name__, self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` gave, or DeepSpeed's own class of this name did. Masks stay the script's own.

        What compression left out before is dropped; `load_rank_state` brings it back.

        Raises:
            ConfigError: it is of another optimizer or another model; nothing has changed.
        """
        self.meet()
        check_state(state_dict, self.param_groups, self.needed_state)
        groups = [dict(group) for group in state_dict["param_groups"]]
        for loaded, own in zip(groups, self.param_groups, strict=False):
            loaded.pop(MASK, None)
            loaded.update({MASK: own[MASK]} if MASK in own else {})
        torch.optim.Optimizer.load_state_dict(self, {**state_dict, "param_groups": groups})
        for state in self.state.values():
            for key in self.local_state:
                state.pop(key, None)
        self.averager.reset()
        self.exact.reset()
        self._resume(max((state.get("step", 0) for state in self.state.values()), default=0))

    def rank_state(self) -> dict[str, Any]:
        """What this rank alone knows, besides `state_dict`: plain values and tensors. `legacy` keeps none of it."""
        return {} if not isinstance(self.averager, Fused) else {"residuals": self.averager.state_dict()}

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `rank_state`, or on all ranks from `merge_rank_states`; after `load_state_dict`."""
        if isinstance(self.averager, Fused):
            self.averager.load_state_dict(state["residuals"])

    def forget_rank_state(self) -> None:
        """`load_state_dict` has done it."""

    def merge_rank_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One state for any number of ranks, from those of all ranks: their mean residuals."""
        return {"residuals": merge_residuals([state["residuals"] for state in states])}
