"""What a rank of 0/1 Adam does by itself between synchronisations: entries of a parameter's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from .entry import Entry

__all__ = ["ANCHOR", "RATES", "UPDATES", "ahead", "begins", "heed_changes", "mean_momentum", "rates"]

#: keys of a parameter's state: the updates since the ranks last agreed, their learning rates' sum, and the parameter
#: as it was then, which is there only while ranks differ
UPDATES, RATES, ANCHOR = "momentum_accumulator", "lrs", "anchor"


def ahead(entry: Entry) -> tuple[torch.Tensor, torch.Tensor]:
    """Momentum and updates with this step in them; nothing has moved."""
    momentum = entry.mask(entry.next_momentum(), untouched=True)
    update = replace(entry, state={**entry.state, "exp_avg": momentum}).update()
    return momentum, entry.mask(entry.state[UPDATES] - entry.group["lr"] * update, untouched=True)


def begins(key: str, state: Mapping[str, Any]) -> bool:
    """Whether sums begin anew, because it is not known from where the ranks went on by themselves."""
    return key in (UPDATES, RATES) and ANCHOR not in state


def heed_changes(entry: Entry) -> None:
    """Go on from weights that somebody has put in the parameter since the last step."""
    state = entry.state
    if ANCHOR in state and not torch.equal(entry.param, state[ANCHOR] + state[UPDATES]):
        del state[ANCHOR]
        state[UPDATES].zero_()
        state[RATES] = 0.0


def rates(entry: Entry) -> float:
    """The sum of learning rates, with this step's."""
    return entry.state[RATES] + entry.group["lr"]


def mean_momentum(entry: Entry) -> torch.Tensor:
    """The momentum that leads to all updates since the ranks last agreed, this step's too, at their learning rates.

    What compression leaves out of it is good for any later learning rate; of updates at a large one, it would be too
    much for a small one.
    """
    momentum, updates = ahead(entry)
    lrs = rates(entry)
    return updates * entry.denominator() / -lrs if lrs > 0 else momentum
