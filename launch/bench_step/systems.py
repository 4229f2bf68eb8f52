"""How each system takes a step: its model, its backward, its update, and where the mean gradients are then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...backends import Statistics
from ...compressors import parse_spec
from .names import DENSE, OFF, OURS, Name

__all__ = ["MAKERS", "MakeOptimizer", "Row", "make_row"]

#: seconds that a collective of ours may take: links may be very slow here
TIMEOUT = 600.0
#: MiB, larger than any model here
ONE_BUCKET = 1 << 20
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def _grad(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        raise RuntimeError(f"a parameter of shape {tuple(parameter.shape)} has got no gradient")
    return parameter.grad


@dataclass(kw_only=True)
class Row:
    """One way to train a model.

    Attributes:
        model: whose parameters are trained; calling it involves no wrapper.
        forward: the loss of a batch, through the wrapper.
        backward: from that loss.
        update: exchanges what is not exchanged yet, and changes the parameters.
        early: gradients can be seen before the update only, else after it only.
        mean: a parameter's gradient, averaged over the ranks.
        owed: this rank's part of what earlier steps kept back of a parameter's gradient; None: nothing ever is.
        statistics: gradwire's account of it; None: it is not gradwire's.
        tolerance: how far mean gradients, with what is owed, may be away from the exact ones, relatively.
    """

    name: Name
    model: nn.Module
    forward: Callable[[Any], torch.Tensor]
    backward: Callable[[torch.Tensor], object] = torch.Tensor.backward
    update: Callable[[], object]
    early: bool = False
    mean: Callable[[nn.Parameter], torch.Tensor] = _grad
    owed: Callable[[str], torch.Tensor] | None = None
    statistics: Callable[[], Statistics] | None = None
    tolerance: float = 0.0

    def step(self, batch: Any, look: Callable[[], object] | None = None) -> torch.Tensor:
        """Forward, backward, exchange, update; `look` is called while the mean gradients are there. Gives the loss."""
        loss = self.forward(batch)
        self.backward(loss)
        if look and self.early:
            look()
        self.update()
        if look and not self.early:
            look()
        return loss.detach()

    def free(self) -> None:
        """Leave no gradients behind: other rows want the memory."""
        for parameter in self.model.parameters():
            parameter.grad = None


def make_row(name: Name, model: nn.Module, make_optimizer: MakeOptimizer) -> Row:
    """The row over a model of its own."""
    optimizer = make_optimizer(list(model.parameters()))
    row = MAKERS[name.system](name, model, optimizer)
    row.tolerance = DENSE.get(name.compressor.removesuffix("()").lower(), 1e-3)
    return row


def _plain(name: Name, model: nn.Module, optimizer: torch.optim.Optimizer) -> Row:
    return Row(name=name, model=model, forward=model, update=optimizer.step)


def _horovod(name: Name, model: nn.Module, optimizer: torch.optim.Optimizer) -> Row:
    """Names are made unique: Horovod remembers, by name, what a tensor is like."""
    import horovod.torch as hvd

    from ...horovod_comp import Compression

    ours = Compression(parse_spec(OURS[name.compressor]), timeout=TIMEOUT) if name.is_ours else None
    wrapped = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=[(f"{name}.{own}", parameter) for own, parameter in model.named_parameters()],
        compression=ours or getattr(hvd.Compression, name.compressor),
    )
    row = Row(name=name, model=model, forward=model, update=wrapped.step)
    if ours is not None:
        row.owed = lambda own: ours._sessions()[0].pending(f"{name}.{own}")
        row.statistics = lambda: ours.statistics
    return row


def _ddp(name: Name, model: nn.Module, optimizer: torch.optim.Optimizer) -> Row:
    # all ranks have the same values already; PowerSGD's hook ends torch's process where there are several buckets
    cap = ONE_BUCKET if name.compressor.startswith("PowerSGD") else None
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, init_sync=False, bucket_cap_mb=cap)
    row = Row(name=name, model=model, forward=wrapped, update=optimizer.step)
    if name.is_ours:
        from ...backends import ddp

        compression = ddp.compress(wrapped, parse_spec(OURS[name.compressor]), timeout=TIMEOUT)
        row.owed, row.statistics = compression.pending, lambda: compression.statistics
    elif name.compressor == OFF:
        row.forward = partial(_without_sync, wrapped)
    elif name.compressor != "none":
        row.owed = _hook(name.compressor, wrapped)
    return row


def _without_sync(wrapped: DistributedDataParallel, batch: Any) -> torch.Tensor:
    with wrapped.no_sync():
        return wrapped(batch)


def _hook(compressor: str, wrapped: DistributedDataParallel) -> Callable[[str], torch.Tensor] | None:
    """Register one of torch's own; what it owes."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if compressor.startswith("PowerSGD"):
        return _power_sgd(wrapped)
    own = getattr(default_hooks, f"{compressor}_compress_hook")

    def hook(state: Any, bucket: Any) -> Any:
        """The same under another name: by its name DDP refuses the one for bf16 without NCCL, though Gloo adds them."""
        return own(state, bucket)

    hook.__annotations__.clear()  # DDP compares annotations, and knows none that are text
    wrapped.register_comm_hook(None, hook)
    return None


def _power_sgd(wrapped: DistributedDataParallel) -> Callable[[str], torch.Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    names = {parameter: name for name, parameter in wrapped.module.named_parameters()}
    order: list[nn.Parameter] = []

    def hook(state: Any, bucket: Any) -> Any:
        order[:] = bucket.parameters()
        return power_sgd.powerSGD_hook(state, bucket)

    hook.__annotations__.clear()
    wrapped.register_comm_hook(state, hook)

    def owed(name: str) -> torch.Tensor:
        lengths = [parameter.numel() for parameter in order]
        parts = state.error_dict[0].split(lengths) if state.error_dict else [torch.zeros(n) for n in lengths]
        return next(part for part, p in zip(parts, order, strict=True) if names[p] == name) / dist.get_world_size()

    return owed


def _deepspeed(name: Name, model: nn.Module, optimizer: torch.optim.Optimizer) -> Row:
    from .deepspeed_rows import make

    return make(name, model, optimizer, TIMEOUT)


#: by system
MAKERS: dict[str, Callable[[Name, nn.Module, torch.optim.Optimizer], Row]] = {
    "plain": _plain,
    "Horovod": _horovod,
    "gradwire/Horovod": _horovod,
    "DDP": _ddp,
    "gradwire/DDP": _ddp,
    "DeepSpeed": _deepspeed,
    "DeepSpeed ZeRO 0": _deepspeed,
    "DeepSpeed ZeRO 2": _deepspeed,
    "gradwire/DeepSpeed": _deepspeed,
}
