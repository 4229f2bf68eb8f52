"""Both kinds of reducers, for tests of what they keep."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from gradwire import Compressor
from gradwire.backends import BucketReducer, GradientReducer, Transport
from support.bucketing import TENSORS, whole
from support.reducing import everything, metas, one_step

__all__ = ["MAKERS", "Reducer", "State", "WHOLE", "buckets", "gradients", "play", "through_a_file"]

State = dict[str, Any]
Reducer = GradientReducer | BucketReducer

WHOLE = whole()


def gradients(codec: Compressor, transport: Transport, name: str, exchange: str) -> GradientReducer:
    reducer = GradientReducer(everything(codec), transport, name=name, exchange=exchange, bucket_bytes=900)
    reducer.register(metas(TENSORS))
    return reducer


def buckets(codec: Compressor, transport: Transport, name: str, exchange: str) -> BucketReducer:
    return BucketReducer(everything(codec), transport, name=name, exchange=exchange)


MAKERS: list[Callable[[Compressor, Transport, str, str], Reducer]] = [gradients, buckets]


def play(reducer: Reducer, step: int) -> dict[str, torch.Tensor]:
    """The means of one step."""
    if isinstance(reducer, GradientReducer):
        return {name: mean.clone() for name, mean in one_step(reducer, TENSORS, step, donate=step % 2 == 1).items()}
    flat = WHOLE.filled(reducer.transport.rank, step)
    reducer.all_reduce(flat, WHOLE.parts)
    reducer.commit()
    return {part.name: flat[part.start : part.stop].view(part.shape) for part in WHOLE.parts}


def through_a_file(state: State) -> State:
    """As a checkpoint would have it: nothing but tensors and plain values gets through."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
