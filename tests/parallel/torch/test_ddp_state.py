"""What compression keeps for a DistributedDataParallel is saved with the model, and loaded by any number of ranks."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradwire import FP16, Compressor, ConfigError, Int8, OneBit, RandomK, TopK
from gradwire.backends import ddp, merge_states
from gradwire.backends.ddp import Compression
from gradwire.backends.torch_dist import TorchTransport
from support.ddp_training import assert_equal, train, wrapped
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.usefixtures("transport")

CODECS: list[Compressor] = [
    TopK(ratio=0.1),
    TopK(ratio=0.2, values="int8"),
    OneBit(block=64),
    Int8(block=64, stochastic=True),
    RandomK(ratio=0.2),
    FP16(error_feedback=True),
]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    torch.save(state, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=True)


def compressed(codec: Compressor, **options: Any) -> tuple[DistributedDataParallel, Compression]:
    model = wrapped(**options)
    return model, ddp.compress(model, codec, min_numel=8)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_five_steps_and_five_are_ten_bit_for_bit(codec: Compressor) -> None:
    straight, _ = compressed(codec)
    train(straight, range(10))
    first, before = compressed(codec)
    train(first, range(5))
    saved = through_a_file({"model": first.module.state_dict(), "compression": before.state_dict()})
    second, after = compressed(codec)
    second.module.load_state_dict(saved["model"])
    after.load_state_dict(saved["compression"])
    train(second, range(5, 10))
    assert_equal(second, straight)
    assert after.statistics.steps == 10


def merged(compression: Compression) -> dict[str, Any]:
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, compression.state_dict())
    return through_a_file(merge_states(states))


def test_other_numbers_of_ranks_load_what_was_merged(transport: TorchTransport) -> None:
    model, compression = compressed(TopK(ratio=0.1))
    train(model, range(3))
    owed = {name: compression.pending(name) for name, _ in model.module.named_parameters()}
    for pending in owed.values():
        dist.all_reduce(pending)
    state = merged(compression)
    again, all_ranks = compressed(TopK(ratio=0.1))
    all_ranks.load_state_dict(state)
    for name, pending in owed.items():
        dist.all_reduce(now := all_ranks.pending(name))
        torch.testing.assert_close(now, pending)
    train(again, range(3, 5))
    alone = dist.new_group([0])
    if transport.rank == 0:
        _, one = compressed(TopK(ratio=0.1), process_group=alone)
        one.load_state_dict(state)
        for name, pending in owed.items():
            torch.testing.assert_close(one.pending(name), pending)
    transport.barrier("all", 30)


def test_a_state_of_another_compressor_is_refused() -> None:
    _, top = compressed(TopK(ratio=0.1))
    model, one_bit = compressed(OneBit())
    train(model, range(2))
    with pytest.raises(ConfigError, match="compressor is"):
        top.load_state_dict(one_bit.state_dict())


def test_what_a_layer_is_owed_is_saved_while_nobody_uses_it() -> None:
    model, compression = compressed(TopK(ratio=0.2), find_unused_parameters=True)
    train(model, range(2))
    train(model, range(2, 3), arguments=lambda step, rank: {"spare": False})
    state = through_a_file(compression.state_dict())
    again, after = compressed(TopK(ratio=0.2), find_unused_parameters=True)
    after.load_state_dict(state)
    assert after.pending("spare.weight").any()
    assert torch.equal(after.pending("spare.weight"), compression.pending("spare.weight"))
    again.module.load_state_dict(model.module.state_dict())
    for one in (model, again):
        train(one, range(3, 5))
    assert_equal(model, again)
