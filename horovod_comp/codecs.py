"""The codecs of `gradwire` as objects for Horovod's `compression=`, each with its usual defaults."""

from __future__ import annotations

from typing_extensions import Unpack

from .. import compressors as core
from ..compressors.dense import Cast
from ..compressors.quantizers import Quantizer
from .compression import Compression, Options

__all__ = ["BF16", "FP16", "FP8", "Int4", "Int8", "NoCompression", "OneBit", "RandomK", "TopK", "TwoBit"]


class NoCompression(Compression):
    """No compression, but buckets, statistics and bfloat16 (`gradwire.NoCompression`)."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(core.NoCompression(), **options)


class FP16(Compression):
    """16 bits per element, added up by Horovod's own all-reduce (`gradwire.FP16`)."""

    def __init__(self, *, error_feedback: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(core.FP16(error_feedback=error_feedback), **options)


class BF16(Compression):
    """16 bits per element with fp32's range; added up in fp32 (`gradwire.BF16`)."""

    def __init__(self, *, error_feedback: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(core.BF16(error_feedback=error_feedback), **options)


class TopK(Compression):
    """The largest entries and where they are (`gradwire.TopK`)."""

    def __init__(
        self,
        *,
        ratio: float = 0.01,
        values: Cast | Quantizer | core.TwoBit | str | None = None,
        sampled: bool = False,
        error_feedback: bool = True,
        **options: Unpack[Options],
    ) -> None:
        codec = core.TopK(ratio=ratio, values=values, sampled=sampled, error_feedback=error_feedback)
        super().__init__(codec, **options)


class RandomK(Compression):
    """Entries drawn alike on all ranks, added up by Horovod's own all-reduce (`gradwire.RandomK`)."""

    def __init__(self, *, ratio: float = 0.01, error_feedback: bool = True, **options: Unpack[Options]) -> None:
        super().__init__(core.RandomK(ratio=ratio, error_feedback=error_feedback), **options)


class OneBit(Compression):
    """One sign bit per element and a scale per block (`gradwire.OneBit`)."""

    def __init__(
        self, *, block: int | None = 2048, scale: str = "l1", error_feedback: bool = True, **options: Unpack[Options]
    ) -> None:
        super().__init__(core.OneBit(block=block, scale=scale, error_feedback=error_feedback), **options)


class Int8(Compression):
    """8 bits per element and a scale per block (`gradwire.Int8`)."""

    def __init__(
        self,
        *,
        block: int = 256,
        stochastic: bool = False,
        error_feedback: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(core.Int8(block=block, stochastic=stochastic, error_feedback=error_feedback), **options)


class Int4(Compression):
    """4 bits per element and a scale per block (`gradwire.Int4`)."""

    def __init__(
        self,
        *,
        block: int = 256,
        stochastic: bool = False,
        error_feedback: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(core.Int4(block=block, stochastic=stochastic, error_feedback=error_feedback), **options)


class FP8(Compression):
    """Floats of 8 bits and a scale per block (`gradwire.FP8`)."""

    def __init__(
        self, *, format: str = "e4m3", block: int = 256, error_feedback: bool = True, **options: Unpack[Options]
    ) -> None:
        super().__init__(core.FP8(format=format, block=block, error_feedback=error_feedback), **options)


class TwoBit(Compression):
    """The sign and one of two magnitudes per element (`gradwire.TwoBit`)."""

    def __init__(self, *, block: int = 256, error_feedback: bool = True, **options: Unpack[Options]) -> None:
        super().__init__(core.TwoBit(block=block, error_feedback=error_feedback), **options)
