"""What `ddp` reads off a `DistributedDataParallel`: its parameters and their layout, its ranks, what it cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..compressors import Compressor
from ..compressors.errors import ConfigError, TransportError, UnsupportedError, UsageError

__all__ = ["ONE_HOOK", "check", "laid_out", "name_of", "names_of", "own_group"]

ONE_HOOK = (
    "the model has a communication hook already (mixed_precision= sets one too), and DDP takes one only: wrap the "
    "module in a new DistributedDataParallel"
)

#: seconds that torch's group waits longer than the reducer, whose error says more
GRACE = 10.0
#: torch knows no timeout without end
YEAR = 365 * 86400.0


def names_of(model: DistributedDataParallel) -> dict[torch.Tensor, str]:
    """The parameters whose gradients DDP averages and which are not sparse, as it finds them.

    Raises:
        UnsupportedError: they are on several devices.
    """
    sparse = {
        module.weight
        for module in model.module.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }
    names: dict[torch.Tensor, str] = {}
    for name, parameter in model.module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad and parameter not in sparse and name not in model.parameters_to_ignore:
            names.setdefault(parameter, name)
    devices = sorted({str(parameter.device) for parameter in names})
    if len(devices) > 1:
        raise UnsupportedError(
            f"the model's parameters are on {' and '.join(devices)}: put those that need a gradient on one device"
        )
    return names


def name_of(parameter: torch.Tensor, names: Mapping[torch.Tensor, str]) -> str:
    """The name of a parameter that DDP averages."""
    if parameter not in names:
        raise UsageError(
            f"DDP averages a parameter of shape {tuple(parameter.shape)}, which needed no gradient when compress() was "
            "called: freeze parameters before the model is wrapped, or after compress()"
        )
    return names[parameter]


def laid_out(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """DDP keeps gradients in their parameters' layout, `channels_last` for instance, but shows them as rows."""
    # one with gaps is not kept so: its copy would have other strides
    if parameter.is_contiguous() or torch.empty_like(parameter, device="meta").stride() != parameter.stride():
        return gradient
    return gradient.as_strided(parameter.shape, parameter.stride(), gradient.storage_offset())


def own_group(model: DistributedDataParallel, timeout: float) -> dist.ProcessGroup:
    """The same ranks in another group."""
    ranks = dist.get_process_group_ranks(model.process_group)
    try:
        group = dist.new_group(
            ranks,
            timeout=timedelta(seconds=min(timeout, YEAR) + GRACE) if timeout > 0 else None,
            backend=dist.get_backend(model.process_group),
            # for all ranks a group is made by all; for some only by these, and torch names it less reliably then
            use_local_synchronization=len(ranks) < dist.get_world_size(),
        )
    except RuntimeError as error:
        raise TransportError(
            f"ranks {ranks} made no process group together: call compress() on all of them, and for several models in "
            f"the same order ({error})"
        ) from error
    if not isinstance(group, dist.ProcessGroup):
        raise UsageError(f"rank {dist.get_rank()} is not in the process group of the model, {ranks}")
    return group


def check(model: object, compressor: object) -> None:
    """Refuse what cannot be compressed, before any communication.

    Raises:
        UsageError, UnsupportedError, ConfigError: as `gradwire.backends.ddp.compress` says.
    """
    if not isinstance(model, DistributedDataParallel):
        raise UsageError(f"compress() got a {type(model).__name__}: wrap it in DistributedDataParallel first")
    if not isinstance(compressor, Compressor):
        raise ConfigError(f"compress() got {compressor!r} as compressor: give it one such as gradwire.TopK(ratio=0.01)")
    if model._comm_hooks:
        raise UsageError(ONE_HOOK)
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise UnsupportedError("skip_all_reduce_unused_params=True leaves out buckets: make the model without it")
