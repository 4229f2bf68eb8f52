"""How much is allocated on the way: decoding needs no dense temporary, encoding few."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from gradwire import FP8, FP16, Compressor, ErrorFeedback, Int4, Int8, NoCompression, OneBit, RandomK, TopK, TwoBit
from gradwire.compressors.kernels.reference.pieces import PIECE
from support.compressing import context, make_values
from support.native_cases import needs_native
from torch.utils._python_dispatch import TorchDispatchMode

NUMEL = 16 * PIECE
DENSE = 4 * NUMEL

LOSSY = [FP16(), TopK(), TopK(sampled=True), RandomK(), OneBit(), OneBit(block=None), Int8(), Int4(), FP8(), TwoBit()]
#: also with all values in one block
CODED = [TopK(values=FP16()), TopK(values=Int8()), TopK(values=Int4(block=1 << 31)), TopK(values=TwoBit())]
#: what native kernels take beside this is 64 KiB per thread, of which torch knows nothing
LITTLE = 1 << 10
CODECS = [NoCompression(), *LOSSY]


class Allocations(TorchDispatchMode):
    """Bytes of the largest storage that a torch operation made while this was active, and of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: Mapping | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {arg.untyped_storage().data_ptr() for arg in [*args, *(kwargs or {}).values()] if torch.is_tensor(arg)}
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if torch.is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
                self.total += tensor.untyped_storage().nbytes()
        return result


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_decoding_allocates_no_dense_temporary(codec: Compressor) -> None:
    x = make_values("normal", NUMEL, seed=1)
    payload, out = codec.compress(x, {}, context(x)).payload, torch.zeros(NUMEL)
    with Allocations() as seen:
        codec.decompress_add(payload, context(x), out, 0.5)
    assert seen.largest <= 8 * PIECE < DENSE / 4


@pytest.mark.parametrize("codec", LOSSY, ids=repr)
def test_encoding_with_error_feedback_allocates_little_beside_what_it_was_given(codec: Compressor) -> None:
    x = make_values("normal", NUMEL, seed=1)
    memory = ErrorFeedback(codec)
    first = memory.compress(x, {}, context(x))
    out, scratch = torch.empty_like(first.payload), torch.empty(NUMEL)
    with Allocations() as seen:
        memory.compress(x, first.state, context(x), out=out, scratch=scratch)
    assert seen.largest <= 8 * PIECE < DENSE / 4


@needs_native
@pytest.mark.parametrize("codec", [*LOSSY, *CODED], ids=repr)
def test_native_kernels_need_no_memory_but_what_they_are_given(codec: Compressor) -> None:
    x, memory = make_values("normal", NUMEL, seed=1), ErrorFeedback(codec)
    first = memory.compress(x, {}, context(x))
    payload, scratch, out = torch.empty_like(first.payload), torch.empty(NUMEL), torch.zeros(NUMEL)
    with Allocations() as encoding:
        memory.compress(x, first.state, context(x), out=payload, scratch=scratch)
    with Allocations() as decoding:
        memory.decompress_add(payload, context(x), out, 0.5)
    assert encoding.total <= LITTLE
    assert decoding.total <= LITTLE
