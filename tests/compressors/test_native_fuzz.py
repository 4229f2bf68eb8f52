"""Payloads with other bytes: an error before anything is written, or a result; never memory that is not the tensor's.

`test_native_builds.py` runs this file with sanitizers as well.
"""

from __future__ import annotations

import pytest
import torch
from gradwire import FP16, Compressor, PayloadError, TopK, UsageError
from gradwire.compressors import kernels
from support.compressing import RAW, context, make_values
from support.native_cases import FORMS, needs_native, running

pytestmark = needs_native

BYTES = [codec for codec in RAW if codec.wire_dtype(context(torch.zeros(9)).meta) == torch.uint8]
#: changed payloads of each codec, size and form
ROUNDS = 40


def changed(payload: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Some bytes, or a run of them, or all, are others."""
    other, size = payload.clone(), payload.numel()
    kind = int(torch.randint(4, (1,), generator=random))
    if kind == 0:
        return torch.randint(256, (size,), generator=random, dtype=torch.uint8)
    where = torch.randint(size, (2,), generator=random)
    if kind == 1:
        other[int(where.min()) : int(where.max()) + 1] = int(torch.randint(256, (1,), generator=random))
    elif kind == 2:
        other[where[0]] ^= 1 << int(torch.randint(8, (1,), generator=random))
    else:
        other[where] = torch.randint(256, (2,), generator=random, dtype=torch.uint8)
    return other


@pytest.mark.parametrize("isa", FORMS)
@pytest.mark.parametrize("numel", [1, 9, 1000, 66_000])
@pytest.mark.parametrize("codec", BYTES, ids=repr)
def test_changed_payloads(codec: Compressor, numel: int, isa: str) -> None:
    """What one form makes of them, the reference makes of them."""
    random = torch.Generator().manual_seed(numel)
    x = make_values("normal", numel, seed=numel)
    ctx, rounds = context(x), ROUNDS if numel < 10_000 else ROUNDS // 10
    payload = codec.compress(x, {}, ctx).payload
    for _ in range(rounds):
        other = changed(payload, random)
        results = []
        for reference in (True, False):
            out = x.clone()
            with running(isa), kernels.reference_only(reference):
                try:
                    codec.decompress_add(other, ctx, out, 0.5)
                    results.append(out.nan_to_num())
                except PayloadError as error:
                    assert torch.equal(out, x)
                    results.append(str(error))
        assert type(results[0]) is type(results[1])
        assert results[0] == results[1] if isinstance(results[0], str) else torch.equal(*results)


@pytest.mark.parametrize("isa", FORMS)
@pytest.mark.parametrize("codec", [TopK(ratio=0.5), TopK(ratio=0.5, values=FP16()), TopK(ratio=0.2, sampled=True)])
def test_payloads_within_the_output_are_refused(codec: Compressor, isa: str) -> None:
    """Places that were checked would change before they are read again."""
    memory = torch.zeros(100_000)
    x = make_values("normal", memory.numel(), seed=1)
    payload = memory.view(torch.uint8)[8 : 8 + codec.nbytes(context(x).meta)]
    codec.compress(x, {}, context(x), out=payload)
    before = memory.clone()
    with running(isa), pytest.raises(UsageError, match="share memory"):
        codec.decompress_add(payload, context(x), memory)
    assert torch.equal(memory.view(torch.uint8), before.view(torch.uint8))
