"""That a row's gradients are right: equal on all ranks, and with what is still owed the exact mean.

Whole gradients are compared by sketches, sums of their values with random signs: a sketch of a sum is the sum of
sketches, an error's sketch has about its norm, and little travels over the slow links that are measured here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from .systems import Row

__all__ = ["Sketcher", "WrongResult", "check_bytes", "digest", "verified_step"]

WIDTH = 64
#: what a host's interface may send beyond what gradwire counts: headers and what is sent twice, a share; what idle
#: Horovods say to each other, per second; and barriers
OVERHEAD, CHATTER, LITTLE = 0.25, 1 << 20, 1 << 18


class WrongResult(Exception):
    """A row's gradients are wrong; the text names it."""


class Sketcher:
    """Sketches of tensors.

    Args:
        longest: values of the largest tensor.
    """

    def __init__(self, longest: int) -> None:
        generator = torch.Generator().manual_seed(1)
        padded = -(-longest // WIDTH) * WIDTH
        self._signs = torch.randint(0, 2, (padded,), generator=generator, dtype=torch.int8).mul_(2).sub_(1)

    def of(self, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        """One line of numbers for each tensor."""
        return torch.stack([self._one(tensor) for tensor in tensors])

    def _one(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = F.pad(tensor.detach().reshape(-1).float(), (0, -tensor.numel() % WIDTH))
        return (flat * self._signs[: flat.numel()]).view(-1, WIDTH).sum(0, dtype=torch.float64)


def digest(tensors: Iterable[torch.Tensor]) -> int:
    """Of all bits."""
    sums = hashlib.blake2b(digest_size=7)
    for tensor in tensors:
        sums.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return int.from_bytes(sums.digest(), "little")


def verified_step(row: Row, batch: Any, sketcher: Sketcher) -> torch.Tensor:
    """One step, not timed, whose result is checked; the loss.

    Raises:
        WrongResult: on all ranks alike.
    """
    ranks, names = dist.get_world_size(), [name for name, _ in row.model.named_parameters()]
    expected = _total(sketcher.of(_own_gradients(row, batch)) / ranks + _owed(row, names, sketcher))
    seen: list[tuple[int, torch.Tensor]] = []

    def look() -> None:
        means = [row.mean(parameter).float() for parameter in row.model.parameters()]
        seen.append((digest(means), sketcher.of(means)))

    loss = row.step(batch, look)
    ((bits, mean),) = seen
    if not _same_everywhere(bits):
        raise WrongResult(f"{row.name}: ranks hold different gradients")
    _compare(
        row, dict(zip(names, _total(mean / ranks + _owed(row, names, sketcher)) - expected, strict=True)), expected
    )
    return loss


def check_bytes(rows: Iterable[Mapping[str, Any]]) -> None:
    """That what gradwire says it has sent has left the host, and nothing of size besides; one rank on each host.

    Raises:
        WrongResult: a row's accounts differ.
    """
    for row in rows:
        sent, counted = row["bytes_sent"], row["bytes_counted"]
        if sent is None or counted is None:
            continue
        most = (1 + OVERHEAD) * counted + CHATTER * row["step_s"] + LITTLE
        if not counted <= sent <= most:
            raise WrongResult(
                f"{row['system']} {row['compressor']}: its statistics say {counted:.0f} bytes sent per step, and the "
                f"host's interface {sent}, where up to {most:.0f} were expected"
            )


def _compare(row: Row, errors: Mapping[str, torch.Tensor], expected: torch.Tensor) -> None:
    error = float(torch.stack(list(errors.values())).norm() / expected.norm())
    if not error <= row.tolerance:
        worst = max(errors, key=lambda name: float(errors[name].norm().nan_to_num(torch.inf)))
        raise WrongResult(
            f"{row.name}: its gradients, and what is owed of them, are {error:.2%} away from the exact mean, where "
            f"{row.tolerance:.2%} is allowed; most of all {worst}"
        )


def _own_gradients(row: Row, batch: Any) -> tuple[torch.Tensor, ...]:
    """Of this rank alone: nothing that watches `.grad` hears of them."""
    return torch.autograd.grad(row.model(batch), list(row.model.parameters()))


def _owed(row: Row, names: list[str], sketcher: Sketcher) -> torch.Tensor:
    """This rank's part of what earlier steps have kept back."""
    if row.owed is None:
        return torch.zeros(len(names), WIDTH, dtype=torch.float64)
    return sketcher.of(map(row.owed, names))


def _total(sketch: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(sketch)
    return sketch


def _same_everywhere(number: int) -> bool:
    mine = torch.tensor([number])
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    return all(torch.equal(other, mine) for other in others)
