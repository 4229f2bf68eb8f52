"""A given-away gradient whose storage somebody else still looks at is left as it is."""

from __future__ import annotations

import pytest
import torch
from gradwire import Compressor, Int8, NoCompression, OneBit, TopK
from gradwire.backends import GradientReducer, Transport, run_ranks
from support.reducing import gradient, ids, metas

SHAPE = (64, 64)
CODECS: list[Compressor] = [NoCompression(), TopK(ratio=0.1), OneBit(), Int8()]


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20], ids=["alone", "one bucket"])
@pytest.mark.parametrize("compressor", CODECS, ids=ids)
def test_gradients_that_share_a_storage_give_equal_means(compressor: Compressor, bucket_bytes: int) -> None:
    """As autograd makes them for `a[None] + b[None]`."""

    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(compressor, transport, bucket_bytes=bucket_bytes)
        reducer.register(metas({"a": SHAPE, "b": SHAPE}))
        for step in range(3):
            a = gradient("a", SHAPE, transport.rank, step)
            b = a[None].view(SHAPE)
            reducer.ready("a", a, donate=True)
            reducer.ready("b", b, donate=True)
            assert torch.equal(reducer.wait("a"), reducer.wait("b"))

    run_ranks(2, rank_main)


@pytest.mark.parametrize("compressor", CODECS, ids=ids)
def test_a_gradient_that_backward_has_yet_to_use_stays_as_it_is(compressor: Compressor) -> None:
    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(compressor, transport)
        reducer.register(metas({"a": SHAPE}))
        for step in range(3):
            grad = gradient("a", SHAPE, transport.rank, step)
            upstream = grad[None]
            reducer.ready("a", grad, donate=True)
            reducer.flush()
            assert torch.equal(upstream[0], gradient("a", SHAPE, transport.rank, step))
            reducer.wait("a")

    run_ranks(2, rank_main)
