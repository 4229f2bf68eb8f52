"""Two-phase rounds twice; the second rounding must not know the first one's random numbers."""

from __future__ import annotations

import torch
from gradwire import Int8, SizePolicy
from gradwire.backends import GradientReducer, Transport, run_ranks
from support.reducing import metas

STEPS = 50
NUMEL = 600


def test_stochastic_rounding_stays_unbiased_through_both_phases() -> None:
    """Rank r's shard holds 0.5 of a level on rank r and 0 elsewhere: with shared noise its mean came out doubled."""
    codec = SizePolicy(Int8(block=NUMEL, stochastic=True), min_numel=0, min_ndim=0)

    def rank_main(transport: Transport) -> torch.Tensor:
        reducer = GradientReducer(codec, transport, exchange="two_phase")
        reducer.register(metas({"w": (NUMEL,)}))
        own = slice(transport.rank * NUMEL // 2, (transport.rank + 1) * NUMEL // 2)
        grad = torch.zeros(NUMEL)
        grad[own] = 0.5
        grad[:: NUMEL // 2] = 127.0  # the peak of each shard: a level is exactly 1
        total = torch.zeros(NUMEL)
        for _ in range(STEPS):
            reducer.ready("w", grad)
            total += reducer.wait("w")
        return total / STEPS

    mean = run_ranks(2, rank_main)[0]
    inner = mean[mean < 100]
    assert inner.numel() == NUMEL - 2
    # a mean is 0 or 1, so its standard deviation is at most 0.5; six of them over all draws
    assert abs(float(inner.mean()) - 0.25) < 6 * 0.5 / (STEPS * inner.numel()) ** 0.5
