"""An optimizer that knows its DeepSpeed engine, and turns the engine's averages of gradients on and off."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch

from ..backends.announce import announce
from ..compressors.errors import UsageError
from .engine import (
    Engine,
    Scopes,
    find_engine,
    loss_scale_fault,
    parameter_names,
    refuse_unsuitable,
    set_backward_allreduce,
)
from .groups import check_group, describe
from .norms import agree_on_norms
from .options import MomentumOptions

__all__ = ["EngineOptimizer", "Params"]

Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]]


class EngineOptimizer(torch.optim.Optimizer):
    """Meets its engine while that builds it, or at its first step.

    Args:
        params: as for every optimizer of torch.
        options: checked already.

    Attributes:
        deepspeed: the engine, once it is known.

    Raises:
        ConfigError: a group has a setting that is out of its range, or experts are in a group not marked as theirs.
    """

    def __init__(self, params: Params, options: MomentumOptions) -> None:
        self.deepspeed: Engine | None = None
        self.legacy = options.legacy
        self.comm_backend_name = options.comm_backend_name
        self.cuda_aware = options.cuda_aware
        self._options = options
        self._reduced = True
        self._names: dict[torch.Tensor, str] = {}
        self._scopes: Scopes | None = None
        torch.optim.Optimizer.__init__(self, params, options.group_defaults())

    @abstractmethod
    def _met(self, engine: Engine) -> None:
        """The engine is known from now on."""

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
        self._met(engine)
        if not self.reduced:
            set_backward_allreduce(engine, False)
        fault = loss_scale_fault(engine)
        if fault is not None and engine.global_rank == 0:
            warnings.warn(fault, stacklevel=3)

    @property
    def reduced(self) -> bool:
        """Whether the engine averages gradients after backward, so that the next step gets equal ones on all ranks."""
        return self._reduced

    @reduced.setter
    def reduced(self, value: bool) -> None:
        self._reduced = value
        if self.deepspeed is not None:
            set_backward_allreduce(self.deepspeed, value)
            if not (value or self.legacy):
                agree_on_norms(self.deepspeed)

    @property
    def using_pipeline(self) -> bool:
        return hasattr(self.deepspeed, "pipeline_enable_backward_allreduce")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. Raises ConfigError as the constructor does."""
        check_group(len(self.param_groups), param_group, self._options)
        torch.optim.Optimizer.add_param_group(self, param_group)

    # What a subclass uses.

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

    def _find(self, name: str) -> torch.Tensor | None:
        """The parameter of a name."""
        params = (param for group in self.param_groups for param in group["params"])
        return next((param for param in params if self._name(param) == name), None)

    def _facts(self) -> list[str]:
        """What must be equal on all ranks, line by line."""
        return [] if self.legacy else describe(self.param_groups, self._options, self._name)

    def _announce(self, line: str) -> None:
        if self.deepspeed is not None and self.deepspeed.global_rank == 0:
            announce(f"{type(self).__name__}: {line}")
