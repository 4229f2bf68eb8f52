"""Which tensors are compressed at all: a decision from shape and configuration, so that all ranks take it alike."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple

from .base import Compressor, TensorMeta
from .dense import Cast, NoCompression
from .errors import ConfigError
from .memory import ErrorFeedback
from .momentum import MomentumCorrection
from .options import check_int
from .wrapper import Wrapper

__all__ = ["Choice", "SizePolicy", "choose", "with_defaults", "without_memory"]

_DENSE = NoCompression()


class Choice(NamedTuple):
    """What happens to one tensor.

    Attributes:
        codec: the codec for it; `NoCompression()` if it travels dense.
        reason: why it travels dense, or None.
    """

    codec: Compressor
    reason: str | None


@dataclass(frozen=True)
class SizePolicy(Wrapper):
    """Compresses tensors that are large enough to gain, and sends the others dense in the same bucket.

    Dense are tensors with few elements or dimensions, and those of which the codec would send every entry or no
    fewer bytes than they have.

    Attributes:
        compressor: the codec for the large tensors.
        min_numel: tensors with fewer elements are dense.
        min_ndim: tensors with fewer dimensions are dense (biases and norms gain little and are sensitive).
    """

    _: KW_ONLY
    min_numel: int = 1024
    min_ndim: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.compressor, Compressor) or isinstance(self.compressor, SizePolicy):
            raise ConfigError(f"SizePolicy got {self.compressor!r}, expected a compressor, wrapped once")
        check_int("min_numel", self.min_numel, 0, 1 << 62)
        check_int("min_ndim", self.min_ndim, 0, 64)

    def choose(self, meta: TensorMeta) -> Choice:
        """The codec for one tensor."""
        reason = self._reason(meta)
        return Choice(self.compressor if reason is None else _DENSE, reason)

    def _reason(self, meta: TensorMeta) -> str | None:
        payload, entries = self.compressor.nbytes(meta), self.compressor.entries(meta)
        rules = (
            (meta.numel == 0, "empty"),
            (meta.numel < self.min_numel, f"below min_numel={self.min_numel}"),
            (len(meta.shape) < self.min_ndim, f"{len(meta.shape)}-D"),
            (payload >= meta.raw_bytes, f"no saving: {payload} of {meta.raw_bytes} bytes"),
            (entries == meta.numel, f"no saving: {entries} of {meta.numel} entries"),
        )
        return next((reason for applies, reason in rules if applies), None)

    def _codec(self, meta: TensorMeta) -> Compressor:
        return self.choose(meta).codec


def choose(compressor: Compressor, meta: TensorMeta) -> Choice:
    """The codec for one tensor: what a policy says, else the compressor itself; empty tensors are dense."""
    if isinstance(compressor, SizePolicy):
        return compressor.choose(meta)
    if isinstance(compressor, NoCompression):
        return Choice(compressor, "no compression")
    return Choice(compressor, None) if meta.numel else Choice(_DENSE, "empty")


def with_defaults(compressor: Compressor, min_numel: int = 1024) -> Compressor:
    """What a reducer makes of a codec that it was given: error feedback for biased ones, and a size policy.

    Casts and `NoCompression` get no policy, since they suit tensors of every size. A policy or a memory that is
    there already is kept.

    Raises:
        ConfigError: a `MomentumCorrection`, or no compressor.
    """
    if not isinstance(compressor, Compressor):
        raise ConfigError(
            f"the compressor is {compressor!r}, expected one such as TopK(ratio=0.01) or parse_spec('topk')"
        )
    inner = compressor.compressor if isinstance(compressor, SizePolicy) else compressor
    if isinstance(inner, MomentumCorrection):
        raise ConfigError(f"{inner!r} cannot be exchanged yet; take {inner.compressor!r}, and the optimizer's momentum")
    if isinstance(compressor, SizePolicy):
        return replace(compressor, compressor=_remembering(compressor.compressor))
    codec = compressor.compressor if isinstance(compressor, ErrorFeedback) else compressor
    remembering = _remembering(compressor)
    if isinstance(codec, Cast | NoCompression):
        return remembering
    return SizePolicy(remembering, min_numel=min_numel)


def without_memory(compressor: Compressor) -> Compressor:
    """The same codec and policy with error feedback off, for tensors that have no name to keep a residual by."""
    if isinstance(compressor, SizePolicy):
        return replace(compressor, compressor=without_memory(compressor.compressor))
    codec = compressor.compressor if isinstance(compressor, ErrorFeedback) else compressor
    if not codec.wants_memory:
        return codec
    return replace(codec, error_feedback=False)  # pyright: ignore[reportArgumentType] - codecs are dataclasses


def _remembering(compressor: Compressor) -> Compressor:
    return ErrorFeedback(compressor) if compressor.wants_memory else compressor
