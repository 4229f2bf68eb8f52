"""Ranks compare what they are about to do before they do it.

A digest of fixed size is gathered first. Only if it differs do the full descriptions travel, and every rank
raises the same error, which names the first difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch

from ..compressors.errors import MismatchError
from .transport import Transport

__all__ = ["agree", "compare", "digest_of"]

#: A description longer than this is cut; the difference is then reported as lying behind the cut.
LIMIT = 1 << 20


def agree(lines: Sequence[str], transport: Transport, name: str, timeout: float) -> bytes:
    """Compare a description over all ranks; a collective operation.

    Args:
        lines: one fact per line, `what: value`; a fact that is the same on all ranks stands on the same line.
        transport: the ranks to agree with.
        name: prefix of the collectives' names.
        timeout: seconds that a collective may take.

    Returns:
        The description's digest.

    Raises:
        MismatchError: on every rank, with the first difference and both values.
    """
    digest = digest_of(lines)
    compare(digest, lambda: lines, transport, f"{name}.fingerprint", timeout)
    return digest


def digest_of(lines: Sequence[str]) -> bytes:
    """32 bytes that stand for a description."""
    return hashlib.sha256(_text(lines)).digest()


def compare(
    digest: bytes, describe: Callable[[], Sequence[str]], transport: Transport, name: str, timeout: float
) -> None:
    """Compare a digest over all ranks; a collective operation.

    Args:
        digest: of the same length on all ranks.
        describe: gives the lines that the digest stands for; it is asked only if digests differ.
        transport: the ranks to agree with.
        name: of the collective, and prefix of those that follow if digests differ.
        timeout: seconds that a collective may take.

    Raises:
        MismatchError: on every rank, with the first difference and both values.
    """
    sizes = [len(digest)] * transport.world_size
    digests = transport.all_gather(_bytes(digest), sizes, name).wait(timeout).view(len(sizes), -1)
    if bool((digests != digests[0]).any()):
        raise MismatchError(first_difference(_descriptions(_text(describe())[:LIMIT], transport, name, timeout)))


def _text(lines: Sequence[str]) -> bytes:
    return "\n".join(lines).encode()


def _descriptions(text: bytes, transport: Transport, name: str, timeout: float) -> list[list[str]]:
    """Every rank's lines."""
    length = torch.tensor([len(text)]).view(torch.uint8)
    lengths = transport.all_gather(length, [8] * transport.world_size, f"{name}.sizes").wait(timeout)
    sizes = [min(size, LIMIT) for size in lengths.contiguous().view(torch.int64).tolist()]
    texts = transport.all_gather(_bytes(text), sizes, f"{name}.texts").wait(timeout)
    return [bytes(part.tolist()).decode(errors="replace").split("\n") for part in texts.split(sizes)]


def first_difference(descriptions: list[list[str]]) -> str:
    """The sentence that every rank raises; equal on all ranks."""
    for rank, lines in enumerate(descriptions):
        for number in range(max(len(lines), len(descriptions[0]))):
            here = lines[number] if number < len(lines) else "nothing"
            there = descriptions[0][number] if number < len(descriptions[0]) else "nothing"
            if here != there:
                return (
                    f"ranks disagree: rank 0 has «{there}», rank {rank} has «{here}». Every rank must "
                    "build the same model, use the same compressor and options, and take the same steps."
                )
    return f"ranks disagree, in a part of the description beyond its first {LIMIT} bytes"


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
