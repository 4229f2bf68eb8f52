"""What cannot work under DistributedDataParallel is an error on every rank, never a hang."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch.distributed as dist
from gradwire import ConfigError, MismatchError, OneBit, PeerError, TopK
from gradwire.backends import ddp
from gradwire.backends.torch_dist import TorchTransport
from gradwire.compressors.errors import TransportTimeout, UnsupportedError, UsageError
from support.ddp_training import Net, train, wrapped
from support.truncating import Trap, Truncated
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

pytestmark = pytest.mark.usefixtures("transport")


def test_a_model_that_is_not_wrapped() -> None:
    with pytest.raises(UsageError, match=r"got a Net: wrap it in DistributedDataParallel first"):
        ddp.compress(Net(), TopK())  # pyright: ignore[reportArgumentType]


def test_a_model_that_has_a_hook() -> None:
    model = wrapped()
    ddp.compress(model, TopK())
    with pytest.raises(UsageError, match="DDP takes one only"):
        ddp.compress(model, TopK())
    other = wrapped()
    other.register_comm_hook(None, fp16_compress_hook)
    with pytest.raises(UsageError, match="DDP takes one only"):
        ddp.compress(other, TopK())
    built_in = wrapped()
    built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)  # pyright: ignore[reportPrivateImportUsage]
    with pytest.raises(UsageError, match="DDP takes one only"):
        ddp.compress(built_in, TopK())


@pytest.mark.parametrize("compressor", ["topk", TopK, None], ids=["text", "class", "none"])
def test_what_is_no_compressor(compressor: Any) -> None:
    with pytest.raises(ConfigError, match="as compressor: give it one such as"):
        ddp.compress(wrapped(), compressor)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"exchange": "ring"}, "exchange is 'ring'"),
        ({"bucket_bytes": 0}, "bucket_bytes is 0"),
        ({"overlap": 1}, "overlap is 1"),
        ({"min_numel": -1}, "min_numel is -1"),
    ],
    ids=str,
)
def test_impossible_options(options: dict[str, Any], text: str) -> None:
    model = wrapped()
    with pytest.raises(ConfigError, match=text):
        ddp.compress(model, TopK(), **options)
    ddp.compress(model, TopK(), timeout=float("inf"))  # nothing was lost


def test_ranks_that_differ(transport: TorchTransport) -> None:
    with pytest.raises(MismatchError, match=r"seed=0 .*seed=1|seed=1 .*seed=0"):
        ddp.compress(wrapped(), TopK(), seed=min(transport.rank, 1))


def test_a_codec_that_raises_on_one_rank() -> None:
    last = dist.get_world_size() - 1
    model = wrapped()
    ddp.compress(model, Truncated(trap=Trap(rank=last, step=1, tensor="second.weight")), min_numel=8)
    train(model, range(1))
    with pytest.raises(ArithmeticError if dist.get_rank() == last else PeerError, match="on rank"):
        train(model, range(1, 2))


def test_a_rank_that_does_not_come(transport: TorchTransport) -> None:
    model = wrapped()
    ddp.compress(model, OneBit(), timeout=2.0)
    if transport.rank == 0:
        with pytest.raises(TransportTimeout, match="not finished within 2 s"):
            train(model, range(1))
    else:
        time.sleep(5)
    transport.barrier("all", 60)


def test_a_rank_that_fails_in_its_own_backward() -> None:
    """DDP does not recover from that either; the others hear of it when their time is over."""
    model = wrapped()
    ddp.compress(model, OneBit(), timeout=3.0, overlap=False)
    train(model, range(1))
    if dist.get_rank() == 0:
        model.module.first.weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError if dist.get_rank() == 0 else TransportTimeout):
        train(model, range(1, 2))
    dist.barrier()


def test_a_model_that_leaves_out_buckets() -> None:
    model = wrapped(find_unused_parameters=True)
    model.skip_all_reduce_unused_params = True  # an option of later versions of torch
    with pytest.raises(UnsupportedError, match="make the model without it"):
        ddp.compress(model, TopK())


def test_a_model_on_several_devices() -> None:
    model = wrapped()
    model.module.spare.to("meta")
    with pytest.raises(
        UnsupportedError, match=r"parameters are on cpu and meta: put those that need a gradient on one"
    ):
        ddp.compress(model, TopK())


def test_a_parameter_that_was_frozen_too_late() -> None:
    model = wrapped(find_unused_parameters=True)
    model.module.spare.requires_grad_(False)
    ddp.compress(model, TopK())
    with pytest.raises(UsageError, match=r"of shape \(60.*freeze parameters before the model is wrapped"):
        train(model, range(2))


def test_a_parameter_that_was_frozen_afterwards_counts_as_unused() -> None:
    model = wrapped(find_unused_parameters=True)
    ddp.compress(model, TopK())
    train(model, range(2))
    model.module.spare.requires_grad_(False)
    train(model, range(2, 4))


def test_a_copy_would_not_be_compressed() -> None:
    model = wrapped()
    compression = ddp.compress(model, TopK())
    train(model, range(1))
    for copied in (model, compression):
        with pytest.raises(UsageError, match="cannot be copied or pickled"):
            copy.deepcopy(copied)
    copy.deepcopy(model.module)
