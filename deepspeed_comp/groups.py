"""Parameter groups of the 1-bit optimizers: what is refused of them, and what must be equal on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

import torch

from ..compressors.errors import ConfigError
from .entry import MASK
from .options import MomentumOptions

__all__ = ["ALWAYS_MOVES", "check_group", "check_state", "describe"]

Group = Mapping[str, Any]

#: key of a group of `OneBitAdam` whose variance is never frozen
ALWAYS_MOVES = "non_freeze"
#: keys by which DeepSpeed marks groups of experts
EXPERTS, NAME = "moe", "name"


def check_group(number: int, group: Group, options: MomentumOptions) -> None:
    """Refuse a group before it is added.

    Args:
        number: its place.
        group: as the script hands it over.
        options: those of the optimizer, which hold where the group has no setting of its own.

    Raises:
        ConfigError: a setting is out of its range, or not one that groups have for themselves; or experts are in a
            group that is not marked as theirs.
    """
    settings = {key: group[key] for key in type(options).model_fields if key in group}
    try:
        own = type(options).read({**options.model_dump(), **settings})
    except ConfigError as error:
        raise ConfigError(f"parameter group {number}: {error}") from error
    for key in settings.keys() - set(options.grouped):
        if getattr(own, key) != getattr(options, key):
            raise ConfigError(
                f"parameter group {number} has {key} = {settings[key]!r}, which is one for the whole optimizer, "
                f"{getattr(options, key)!r} here; groups may have {', '.join(options.grouped)} for themselves"
            )
    _check_experts(number, group)


def _check_experts(number: int, group: Group) -> None:
    params = group["params"]
    members = [params] if isinstance(params, torch.Tensor) else params
    if not group.get(EXPERTS) and any(getattr(member, "allreduce", True) is False for member in members):
        raise ConfigError(
            f"parameter group {number} holds experts and is not marked as a group of experts, so their momenta "
            "would be averaged over the wrong ranks: make groups by "
            "deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer"
        )


def describe(groups: Iterable[Group], options: MomentumOptions, name: Callable[[torch.Tensor], str]) -> list[str]:
    """One line per fact that must be equal on all ranks."""
    lines = [repr(options)]
    for number, group in enumerate(groups):
        known = (*options.grouped, ALWAYS_MOVES, EXPERTS, NAME)
        settings = " ".join(f"{key}={group[key]!r}" for key in known if key in group)
        lines.append(f"parameter group {number}: {settings} {_mask_of(group)}".rstrip())
        lines += [
            f"parameter {name(param)} in group {number}: {tuple(param.shape)} {param.dtype}"
            + ("" if param.requires_grad else " without gradient")
            for param in group["params"]
        ]
    return lines


def _mask_of(group: Group) -> str:
    mask = group.get(MASK)
    if mask is None:
        return ""
    values = mask.detach().cpu().double().numpy()
    return f"{MASK} {tuple(mask.shape)} {sha256(values.tobytes()).hexdigest()[:16]}"


def check_state(state_dict: Mapping[str, Any], groups: Iterable[Group], keys: Iterable[str]) -> None:
    """Refuse a state of another optimizer or another model before any of it is loaded.

    Args:
        state_dict: as torch's optimizers have it.
        groups: those of the optimizer that is to load it.
        keys: what it has to hold for every parameter.

    Raises:
        ConfigError: a key is missing, or a momentum has another shape than its parameter.
    """
    own = [param for group in groups for param in group["params"]]
    saved = [index for group in state_dict["param_groups"] for index in group["params"]]
    for param, index in zip(own, saved, strict=False):  # torch refuses other numbers itself
        state = state_dict["state"].get(index, {})
        missing = [key for key in keys if key not in state] if state else []
        if missing:
            raise ConfigError(
                f"this state is of another optimizer: for parameter {index} it has {', '.join(sorted(state))}, and not "
                f"{', '.join(missing)}; to begin with the weights alone, load_checkpoint(..., "
                "load_optimizer_states=False)"
            )
        if state and state["exp_avg"].shape != param.shape:
            raise ConfigError(
                f"this state is of another model: for parameter {index} it has a momentum of shape "
                f"{tuple(state['exp_avg'].shape)}, the parameter is {tuple(param.shape)}"
            )
