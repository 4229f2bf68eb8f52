"""What the 1-bit optimizers share: the order of a step, the engine's flag, first calls and what a load restores."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from ..backends import Statistics
from ..backends.announce import announce
from ..backends.statistics import merge
from ..compressors import Compressor, NoCompression, OneBit, SizePolicy
from ..compressors.errors import UnsupportedError, UsageError
from .averagers import TIMEOUT, Averager, Fused, PerTensor, merge_residuals
from .checkpoint import follow
from .engine import (
    Engine,
    Scopes,
    check_experts,
    find_engine,
    loss_scale_fault,
    parameter_names,
    refuse_unsuitable,
    set_backward_allreduce,
)
from .entry import MASK, Entry
from .options import MomentumOptions

__all__ = ["MomentumOptimizer", "Params"]

Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]]


class MomentumOptimizer(torch.optim.Optimizer):
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

    def __init__(self, params: Params, deepspeed: Engine | None, options: MomentumOptions) -> None:
        torch.optim.Optimizer.__init__(self, params, options.group_defaults())
        self.deepspeed: Engine | None = None
        self.legacy = options.legacy
        self._facts = () if options.legacy else (f"{type(self).__name__} {options!r}",)
        self.comm_backend_name = options.comm_backend_name
        self.cuda_aware = options.cuda_aware
        self.overflow = False
        self._reduced = True
        self._initialised = False
        self._names: dict[torch.Tensor, str] = {}
        self._scopes: Scopes | None = None
        self.averager: Averager = PerTensor() if options.legacy else Fused(self.compressor, type(self).__name__)
        self.exact = Fused(NoCompression(), f"{type(self).__name__}.exact")
        check_experts(self.param_groups)
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
    def reduced(self) -> bool:
        """Whether the engine averages gradients after backward, so that the next step gets equal ones on all ranks."""
        return self._reduced

    @reduced.setter
    def reduced(self, value: bool) -> None:
        self._reduced = value
        if self.deepspeed is not None:
            set_backward_allreduce(self.deepspeed, value)

    @property
    def statistics(self) -> Statistics:
        """What this rank sent besides the engine's own averages of gradients. UsageError with `legacy`: not counted."""
        return merge([self.averager.statistics, self.exact.statistics])

    @property
    def using_pipeline(self) -> bool:
        return hasattr(self.deepspeed, "pipeline_enable_backward_allreduce")

    def _announce(self, line: str) -> None:
        if self.deepspeed is not None and self.deepspeed.global_rank == 0:
            announce(f"{type(self).__name__}: {line}")

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
        for entry in new:
            entry.state.update(self._new_state(entry.param))
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

    # The engine.

    def meet(self, engine: Engine | None = None) -> None:
        """Make the engine's acquaintance, as soon as there is one; None to look for it among the callers.

        Raises:
            ConfigError: its configuration excludes this optimizer.
            UsageError: it is another engine than before.
        """
        if self.deepspeed is not None:
            if engine not in (None, self.deepspeed):
                raise UsageError(f"this {type(self).__name__} works for an engine already: make one for each engine")
            return
        engine = find_engine() if engine is None else engine
        if engine is None:
            return
        refuse_unsuitable(engine, type(self).__name__)
        self.deepspeed = engine
        self._scopes = Scopes(engine, self.comm_backend_name, self.cuda_aware, self._facts)
        if not self.legacy:
            follow(engine, type(self).__name__, self)
        if not self.reduced:
            set_backward_allreduce(engine, False)
        fault = loss_scale_fault(engine)
        if fault is not None and engine.global_rank == 0:
            warnings.warn(fault, stacklevel=3)

    @property
    def _known_scopes(self) -> Scopes:
        if self._scopes is None:
            raise UsageError(
                f"{type(self).__name__} works for a DeepSpeed engine, and none was found: hand the optimizer to "
                "deepspeed.initialize(optimizer=...), or name it in ds.json"
            )
        return self._scopes

    def _name(self, param: torch.Tensor) -> str:
        if param not in self._names and self.deepspeed is not None:
            self._names = parameter_names(self.deepspeed, self.param_groups)
        return self._names[param]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` gave, or DeepSpeed's own class of this name did. Masks stay the script's own.

        What compression left out before is dropped; `load_rank_state` brings it back.
        """
        self.meet()
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
