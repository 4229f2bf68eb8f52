"""A DistributedDataParallel of one rank: nothing is sent, nothing is changed, and states of more ranks are taken up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from gradwire import ConfigError, OneBit, TensorMeta, TopK
from gradwire.backends import GradientReducer, ddp, merge_states, run_ranks
from gradwire.backends.snapshot import StateDict
from gradwire.backends.transport import Transport
from gradwire.compressors.errors import UsageError
from support.ddp_training import Net, assert_equal, grads, loss_of, train, wrapped

RANKS = 3


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage] - documented
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("unused", [False, True])
def test_it_trains_as_if_nothing_were_there(view: bool, unused: bool) -> None:
    stock, ours = (wrapped(gradient_as_bucket_view=view, find_unused_parameters=unused) for _ in range(2))
    compression = ddp.compress(ours, TopK(ratio=0.01), min_numel=8)
    for model in (stock, ours):
        train(model, range(4), arguments=lambda step, rank: {"spare": step % 2 == 0 or not unused})
    assert_equal(stock, ours)
    assert compression.statistics.steps == 4
    assert compression.statistics.total.sent_bytes == 0
    assert not compression.pending("first.weight").any()


def kept_by_more_ranks() -> tuple[StateDict, dict[str, torch.Tensor]]:
    """A merged state, and what is owed by name."""
    shapes = {name: tuple(p.shape) for name, p in Net().named_parameters()}

    def step(transport: Transport) -> tuple[StateDict, dict[str, torch.Tensor]]:
        reducer = GradientReducer(TopK(ratio=0.1), transport)
        reducer.register([TensorMeta(name=name, shape=shape, dtype=torch.float32) for name, shape in shapes.items()])
        generator = torch.Generator().manual_seed(transport.rank)
        reducer.ready_all((name, torch.randn(shape, generator=generator)) for name, shape in shapes.items())
        for name in shapes:
            reducer.wait(name)
        return reducer.state_dict(), {name: reducer.pending(name) for name in shapes}

    results = run_ranks(RANKS, step)
    owed = {name: torch.stack([pending[name] for _, pending in results]).sum(0) for name in shapes}
    return merge_states([state for state, _ in results]), owed


@pytest.mark.parametrize("unused", [False, True])
def test_what_more_ranks_have_owed_is_given_once(unused: bool) -> None:
    state, owed = kept_by_more_ranks()
    model = wrapped(find_unused_parameters=unused)
    compression = ddp.compress(model, TopK(ratio=0.1))
    compression.load_state_dict(state)
    for name, pending in owed.items():
        torch.testing.assert_close(compression.pending(name), pending)
    loss_of(model, 0, 0, lambda step, rank: {"spare": not unused}).backward()
    stock = wrapped(find_unused_parameters=unused)
    loss_of(stock, 0, 0, lambda step, rank: {"spare": not unused}).backward()
    for name, gradient in grads(stock).items():
        torch.testing.assert_close(grads(model)[name], gradient + owed[name])
    assert compression.pending("spare.weight").any() == unused


def test_a_state_of_one_of_several_ranks_is_refused() -> None:
    def state_of(transport: Transport) -> StateDict:
        reducer = GradientReducer(OneBit(), transport)
        reducer.register([TensorMeta(name="x", shape=(2000, 2), dtype=torch.float32)])
        return reducer.state_dict()

    first, _ = run_ranks(2, state_of)
    with pytest.raises(ConfigError, match=r"of rank 0 of 2, .* give merge_states\(\) those of all 2 ranks"):
        ddp.compress(wrapped(), OneBit()).load_state_dict(first)


def test_a_model_that_is_not_wrapped() -> None:
    with pytest.raises(UsageError, match=r"got a Net: wrap it in DistributedDataParallel first"):
        ddp.compress(Net(), TopK())  # pyright: ignore[reportArgumentType]


def test_the_backends_do_not_import_it() -> None:
    code = "import sys, gradwire.backends; assert 'gradwire.backends.ddp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
