"""Compression on a live engine, and off again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ...backends import BucketReducer, TorchTransport
from ...compressors import Compressor, NoCompression, TensorMeta, choose
from ...compressors.errors import ConfigError, UsageError
from ...compressors.options import check_int
from .._host import TIMEOUT, missing, require
from ..checkpoint import follow, unfollow
from .attachment import Attachment
from .averaging import Find, averaging_of, group_of
from .collectives import SHADOWED, scope, shadow, unshadow
from .comparing import NAME, agree_on, described
from .overrides import Method, Overrides
from .refusals import refuse_unsuitable

__all__ = ["attach", "attachment_of", "detach"]

#: where an engine keeps what is attached to it
ATTRIBUTE = "_gradwire_gradients"
#: what is read of an engine, at any stage
ENGINE = (
    "_config",
    "_take_model_step",
    "basic_optimizer",
    "global_steps",
    "module",
    "optimizer",
    "pipeline_parallelism",
    "seq_data_parallel_group",
    "skipped_steps",
    "zero_optimization_stage",
)


class _Attached(NamedTuple):
    attachment: Attachment
    overrides: Overrides
    communication: Any


def attach(
    engine: Any,
    compressor: Compressor,
    *,
    warmup_steps: int = 0,
    exchange: str = "auto",
    timeout: float = TIMEOUT,
    seed: int = 0,
) -> Attachment:
    """Compress the gradients that a DeepSpeed engine averages, at any ZeRO stage; a collective operation.

    DeepSpeed goes on to cast, divide, bucket, clip, check for overflow and broadcast as it does. Only the sums of
    gradients over the ranks are replaced, on this engine alone; other collectives are left as they are. Residuals
    belong to parameters; they are kept when a step is applied, dropped when it is skipped, and saved with the
    engine's checkpoints.

    Args:
        engine: what `deepspeed.initialize` returned.
        compressor: a codec, or one wrapped in memories and policies. A bare biased codec gets error feedback, and
            small and one-dimensional tensors travel dense (`gradwire.with_defaults`).
        warmup_steps: the engine's first steps, whose gradients DeepSpeed averages exactly.
        exchange: "auto", "all_reduce", "gather", "two_phase" or "sparse".
        timeout: seconds that a collective may take.
        seed: base of all pseudo-random choices.

    Raises:
        ConfigError: an option is out of its range, the engine's configuration excludes compression, or all of the
            model's gradients would travel dense.
        UsageError: compression is attached already, or the engine has no optimizer.
        UnsupportedError: this release of DeepSpeed lacks a name that is relied on.
        MismatchError: ranks differ in an option or in the model; now rather than in the first step.
    """
    check_int("warmup_steps", warmup_steps, 0, 1 << 62)
    require(missing(engine, type(engine).__name__, ENGINE))
    if ATTRIBUTE in vars(engine):
        raise UsageError("compression is attached to this engine already: detach(engine) comes first")
    refuse_unsuitable(engine)
    communication = _communication()
    group = group_of(engine)
    reducer = BucketReducer(compressor, TorchTransport(group), name=NAME, exchange=exchange, timeout=timeout, seed=seed)
    averaging = averaging_of(engine, reducer.transport.world_size)
    _check_effect(reducer.compressor, averaging.shapes)
    options = f"exchange={exchange} seed={seed} warmup_steps={warmup_steps}"
    facts = [f"compressor {reducer.compressor!r}", options, type(averaging).__name__, *described(engine.module)]
    agree_on(facts, reducer.transport, timeout)
    attachment = Attachment(engine, reducer, group, averaging, warmup_steps)
    overrides = _override(engine, attachment)
    shadow(communication)
    setattr(engine, ATTRIBUTE, _Attached(attachment, overrides, communication))
    follow(engine, NAME, attachment)
    return attachment


def detach(engine: Any) -> None:
    """Leave an engine's gradients to DeepSpeed again; what is still owed of them is forgotten. All ranks must do so.

    Raises:
        UsageError: nothing is attached.
    """
    attached = _attached(engine)
    attached.attachment.attached = False
    attached.overrides.lift()
    unshadow(attached.communication)
    unfollow(engine, NAME)
    delattr(engine, ATTRIBUTE)


def attachment_of(engine: Any) -> Attachment:
    """What `attach` returned for an engine, also where the `gradient_compression` block of ds.json called it.

    Raises:
        UsageError: nothing is attached.
    """
    return _attached(engine).attachment


def _attached(engine: Any) -> _Attached:
    attached = vars(engine).get(ATTRIBUTE)
    if attached is None:
        raise UsageError("no compression is attached to this engine: attach(engine, compressor) comes first")
    return attached


def _communication() -> Any:
    """The object that all of DeepSpeed's collectives go through."""
    from deepspeed.comm import comm

    require(missing(comm, "deepspeed.comm.comm", ["cdb"]))
    require(missing(comm.cdb, "deepspeed.comm.comm.cdb", SHADOWED))
    return comm.cdb


def _check_effect(compressor: Compressor, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Never silently uncompressed."""
    metas = [TensorMeta(name=name, shape=shape, dtype=torch.float32) for name, shape in shapes.items()]
    reasons = Counter(choose(compressor, meta).reason for meta in metas)
    if None not in reasons and not isinstance(compressor, NoCompression):
        raise ConfigError(
            f"{compressor!r} compresses none of the gradients of this model: {dict(reasons)}; lower min_numel, or "
            "choose another codec"
        )


def _override(engine: Any, attachment: Attachment) -> Overrides:
    overrides = Overrides()
    for name, find in attachment.averaging.methods.items():
        overrides.lay(attachment.averaging.host, name, _averaging(attachment, find))
    overrides.lay(engine, "_take_model_step", _stepping(engine, attachment))
    return overrides


def _averaging(attachment: Attachment, find: Find) -> Callable[[Method], Method]:
    def around(method: Method) -> Method:
        def average(*args: Any, **kwargs: Any) -> Any:
            if not attachment.active:
                return method(*args, **kwargs)
            with scope(attachment.sums(find([*args, *kwargs.values()][0]))):
                return method(*args, **kwargs)

        return average

    return around


def _stepping(engine: Any, attachment: Attachment) -> Callable[[Method], Method]:
    def around(method: Method) -> Method:
        def step(*args: Any, **kwargs: Any) -> Any:
            active, skipped = attachment.active, engine.skipped_steps
            result = method(*args, **kwargs)
            if active:
                attachment.end_step(applied=engine.skipped_steps == skipped)
            return result

        return step

    return around
