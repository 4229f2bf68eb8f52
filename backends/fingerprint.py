"""Ranks compare what they are about to do before they do it.

A digest of fixed size is gathered first. Only if it differs do the full descriptions travel, and every rank
raises the same error, which names the first difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from ..compressors.errors import MismatchError
from .transport import Transport, Work

__all__ = ["Fingerprint"]

#: A description longer than this is cut; the difference is then reported as lying behind the cut.
LIMIT = 1 << 20


class Fingerprint:
    """A description in lines of text, being compared over all ranks; a collective operation.

    Args:
        lines: one fact per line, `what: value`; a fact that is the same on all ranks stands on the same line.
        transport: the ranks to agree with.
        name: prefix of the collectives' names.
    """

    def __init__(self, lines: Sequence[str], transport: Transport, name: str) -> None:
        self._text = "\n".join(lines).encode()[:LIMIT]
        self._transport = transport
        self._name = name
        self.digest = hashlib.sha256("\n".join(lines).encode()).digest()
        self._difference: str | None = None
        self._work: Work | None = transport.all_gather(
            _bytes(self.digest), [len(self.digest)] * transport.world_size, f"{name}.fingerprint"
        )

    def verify(self, timeout: float) -> None:
        """Return if all ranks gave the same description. A difference stays one.

        Raises:
            MismatchError: on every rank, with the first difference and both values.
        """
        if self._work is not None:
            digests = self._work.wait(timeout).view(self._transport.world_size, -1)
            self._work = None
            if bool((digests != digests[0]).any()):
                self._difference = "ranks disagree, and did not come to say about what"
                self._difference = first_difference(self._descriptions(timeout))
        if self._difference is not None:
            raise MismatchError(self._difference)

    def _descriptions(self, timeout: float) -> list[list[str]]:
        world = self._transport.world_size
        length = torch.tensor([len(self._text)]).view(torch.uint8)
        gathered = self._transport.all_gather(length, [8] * world, f"{self._name}.fingerprint.sizes").wait(timeout)
        sizes = [min(size, LIMIT) for size in gathered.contiguous().view(torch.int64).tolist()]
        texts = self._transport.all_gather(_bytes(self._text), sizes, f"{self._name}.fingerprint.texts").wait(timeout)
        parts = texts.split(sizes)
        return [bytes(part.tolist()).decode(errors="replace").split("\n") for part in parts]


def first_difference(descriptions: list[list[str]]) -> str:
    """The sentence that every rank raises; equal on all ranks."""
    for rank, lines in enumerate(descriptions):
        for number in range(max(len(lines), len(descriptions[0]))):
            here = lines[number] if number < len(lines) else "nothing"
            there = descriptions[0][number] if number < len(descriptions[0]) else "nothing"
            if here != there:
                return (
                    f"ranks disagree: rank 0 has «{there}», rank {rank} has «{here}». "
                    "Every rank must build the same model and use the same compressor and options."
                )
    return f"ranks disagree, in a part of the description beyond its first {LIMIT} bytes"


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
