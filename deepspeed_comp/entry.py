"""One parameter in one step, and the arithmetic on it that the 1-bit optimizers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .engine import Scope
from .norms import LARGEST

__all__ = ["Entry", "MASK"]

#: key of a parameter group: momenta are multiplied with this
MASK = "exp_avg_mask"


@dataclass
class Entry:
    """One parameter in one step. The order of operations is DeepSpeed's, since it decides the last bit.

    Attributes:
        name: equal on all ranks.
        group: the parameter group that it is in.
        param: the parameter.
        grad: its gradient in this step.
        state: what the optimizer keeps for it.
        scope: the ranks that hold replicas of it.
    """

    name: str
    group: dict[str, Any]
    param: torch.Tensor
    grad: torch.Tensor
    state: dict[str, Any]
    scope: Scope

    @property
    def momentum(self) -> torch.Tensor:
        return self.state["exp_avg"]

    @property
    def variance(self) -> torch.Tensor:
        return self.state["exp_avg_sq"]

    @property
    def usable(self) -> bool:
        """Whether the gradient is finite, and so is its square, which goes into the variance."""
        return bool(torch.linalg.vector_norm(self.grad, torch.inf) <= LARGEST)

    def count(self) -> None:
        """Count a step."""
        self.state["step"] += 1

    def next_momentum(self) -> torch.Tensor:
        """The momentum with this step's gradient in it; new."""
        beta = self.group["betas"][0]
        return self.momentum.mul(beta).add_(self.grad, alpha=1 - beta)

    def accumulate(self) -> None:
        """Take the gradient into momentum and variance."""
        beta1, beta2 = self.group["betas"]
        self.momentum.mul_(beta1).add_(self.grad, alpha=1 - beta1)
        self.variance.mul_(beta2).addcmul_(self.grad, self.grad, value=1 - beta2)

    def denominator(self) -> torch.Tensor:
        """Root of the variance, plus eps."""
        return self.variance.sqrt() + self.group["eps"]

    def direction(self) -> torch.Tensor:
        """Momentum over the root of the variance."""
        direction = self.momentum / self.denominator()
        return direction.masked_fill_(self.variance == 0, 0.0) if self.group["eps"] == 0.0 else direction

    def with_decay(self, direction: torch.Tensor) -> torch.Tensor:
        """A direction with decoupled weight decay in it; the same tensor where there is none."""
        decay = self.group["weight_decay"]
        return direction + decay * self.param if decay > 0.0 else direction

    def update(self) -> torch.Tensor:
        """What Adam multiplies the learning rate with: no bias correction, decoupled weight decay."""
        return self.with_decay(self.direction())

    def descend(self, update: torch.Tensor, coefficient: float = 1.0) -> None:
        """Move the parameter against `update` by the learning rate times `coefficient`."""
        self.param.add_(-self.group["lr"] * coefficient * update)

    def mask(self, tensor: torch.Tensor, *, untouched: bool = False) -> torch.Tensor:
        """Clear what the group's mask excludes, in place.

        Args:
            tensor: in the parameter's shape; the mask may have another one with as many elements, since a 16-bit
                model's parameters are flattened.
            untouched: clear coordinates of variance 0 too: they never saw a gradient, and sign compression cannot
                say zero.
        """
        mask = self.group.get(MASK)
        if mask is not None:
            mask = mask.to(tensor.device)
            tensor.mul_(mask.reshape(tensor.shape) if mask.numel() == tensor.numel() else mask)
        return tensor.masked_fill_(self.variance == 0, 0.0) if untouched else tensor
