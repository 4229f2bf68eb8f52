"""Ranks compare what they compress before they rely on it: further on, a difference is a hang or the process's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..._version import __version__
from ...backends import TorchTransport, Transport
from ...backends.fingerprint import agree
from ...compressors.errors import TransportError
from .._host import missing, require
from .overrides import Method, Overrides

__all__ = ["agree_on", "comparing_models", "described"]

#: prefix of the collectives' names
NAME = "gradwire.gradients"
#: sends the parameters of one rank to the others that hold the same ones
BROADCAST = "_broadcast_model"


def described(module: Any) -> list[str]:
    """A model, for ranks to compare: one line per parameter."""
    return [
        f"parameter {name}: {tuple(getattr(parameter, 'ds_shape', parameter.shape))} {parameter.dtype}"
        f"{'' if parameter.requires_grad else ', frozen'}"
        for name, parameter in module.named_parameters()
    ]


def agree_on(lines: Sequence[str], transport: Transport, timeout: float) -> None:
    """Compare lines over the ranks; a collective operation, unless there is one rank only.

    Raises:
        MismatchError: they differ; on every rank, with the first difference.
        TransportError: not all ranks compare.
    """
    if transport.world_size == 1:
        return
    try:
        agree([f"gradwire {__version__}", *lines], transport, NAME, timeout)
    except TransportError as error:
        raise type(error)(
            f"{error}. Every rank must compress gradients: write the block gradient_compression in the ds.json of all "
            "of them, or call attach() on all of them, between the same steps"
        ) from error


@contextmanager
def comparing_models(engine: Any, timeout: float) -> Iterator[None]:
    """While an engine is made in this block, ranks compare the model before DeepSpeed sends one rank's to the others.

    DeepSpeed sends each parameter by itself, to the ranks that hold replicas of it, and compares nothing. Where
    parameters were made partitioned (`zero.Init`), it sends nothing here, and nothing is compared.

    Args:
        engine: one that is about to be made.
        timeout: seconds that a collective may take.

    Raises:
        MismatchError: while the engine is made, on every rank: models differ.
    """
    require(missing(type(engine), type(engine).__name__, [BROADCAST]))
    overrides = Overrides()
    overrides.lay(engine, BROADCAST, _comparing(engine, timeout))
    try:
        yield
    finally:
        overrides.lift()


def _comparing(engine: Any, timeout: float) -> Callable[[Method], Method]:
    def around(method: Method) -> Method:
        def broadcast(*args: Any, **kwargs: Any) -> Any:
            agree_on(described(engine.module), TorchTransport(engine.seq_data_parallel_group), timeout)
            return method(*args, **kwargs)

        return broadcast

    return around
