"""The rows of `gradwire bench step`: what they are called, how they are chosen, what each is compared with."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["DENSE", "Name", "OFF", "OURS", "ROWS", "baseline", "chosen", "sixteen_bits"]

OFF = "no communication"
#: how our compressors print themselves, and their specs
OURS = {
    "TopK(ratio=0.01)": "topk:ratio=0.01",
    "OneBit()": "onebit",
    "Int8()": "int8",
    "RandomK(ratio=0.01)": "randomk:ratio=0.01",
    "FP16()": "fp16",
}
SYSTEMS = ("Horovod", "DDP", "DeepSpeed")
#: stock rows that send every value, and what their sums may be away from the exact mean, by rounding
DENSE = {"none": 1e-4, "fp16": 0.02, "bf16": 0.02}


class Name(NamedTuple):
    """A row's two names.

    Attributes:
        system: what carries the gradients; "gradwire/DDP" is gradwire's own way through DDP.
        compressor: how they are made smaller.
    """

    system: str
    compressor: str

    def __str__(self) -> str:
        return f"{self.system} {self.compressor}"

    @property
    def is_ours(self) -> bool:
        return self.system.startswith("gradwire/")

    @property
    def family(self) -> str:
        """Whose model and optimizer run: "plain", "Horovod", "DDP" or "DeepSpeed"."""
        return self.system.removeprefix("gradwire/").split()[0]


ROWS = (
    Name("plain", OFF),
    *(Name("Horovod", compressor) for compressor in ("none", "fp16")),
    *(Name("DDP", compressor) for compressor in (OFF, "none", "fp16", "bf16", "PowerSGD(rank=1)")),
    Name("DeepSpeed", OFF),
    *(Name(f"DeepSpeed ZeRO {stage}", "none") for stage in (0, 2)),
    *(Name(f"gradwire/{system}", compressor) for system in SYSTEMS for compressor in OURS),
)


def baseline(name: Name) -> Name:
    """The same step with communication switched off: Horovod's wrapper has none of its own, a plain model stands in."""
    return Name("plain" if name.family == "Horovod" else name.family, OFF)


def sixteen_bits(name: Name) -> bool:
    """Whether a stock row sends every value in 16 bits: what compression is compared with."""
    return not name.is_ours and name.compressor in ("fp16", "bf16")


def chosen(words: Iterable[str]) -> list[Name]:
    """The rows that words name, whole or in part, in whatever case; and what they are compared with.

    Raises:
        ArgumentTypeError: a word names none.
    """
    found: set[Name] = set()
    for word in words:
        matches = _matches(word.strip(), ROWS)
        if not matches:
            names = ", ".join(map(str, ROWS))
            raise ArgumentTypeError(
                f"{word!r} is not allowed; allowed are these rows, or parts of their names: {names}"
            )
        found.update(matches)
    found |= {baseline(name) for name in found}
    return [name for name in ROWS if name in found]


def _matches(word: str, names: Sequence[Name]) -> list[Name]:
    whole = [name for name in names if str(name).casefold() == word.casefold()]
    return whole or [name for name in names if word and word.casefold() in str(name).casefold()]
