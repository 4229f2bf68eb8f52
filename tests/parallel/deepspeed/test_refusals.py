"""Never silently uncompressed: what cannot be followed is an error, on all ranks and early."""

from __future__ import annotations

import re
from typing import Any

import deepspeed
import pytest
import torch
import torch.distributed as dist
from gradwire import ConfigError, SizePolicy, TopK, UnsupportedError, UsageError
from gradwire.deepspeed_comp import attach, attachment_of, detach
from gradwire.deepspeed_comp.gradients.averaging import Carried
from support.zero import Terms, config, initialize, train

from .conftest import Attach

STAGES = pytest.mark.parametrize("stage", range(4))
COMPRESSOR = TopK(ratio=0.05)


@pytest.fixture
def engine() -> Any:
    return initialize(Terms(), config(0))


def test_attach_twice(engine: Any, compress: Attach) -> None:
    compress(engine, COMPRESSOR)
    with pytest.raises(UsageError, match=r"attached to this engine already: detach\(engine\) comes first"):
        attach(engine, COMPRESSOR)


def test_an_engine_without_an_optimizer() -> None:
    engine = deepspeed.initialize(model=Terms(), config={"train_micro_batch_size_per_gpu": 1})[0]
    with pytest.raises(UsageError, match="no optimizer"):
        attach(engine, COMPRESSOR)


@pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLamb", "ZeroOneAdam"])
def test_an_optimizer_that_compresses_momenta(kind: str) -> None:
    engine = initialize(Terms(), config(0, optimizer={"type": kind, "params": {"lr": 1e-2}}))
    with pytest.raises(ConfigError, match="the optimizer compresses its momenta already"):
        attach(engine, COMPRESSOR)


def test_deepcompile() -> None:
    engine = initialize(Terms(), config(1, compile={"deepcompile": True}))
    with pytest.raises(ConfigError, match="DeepCompile averages gradients inside of the compiled graph"):
        attach(engine, COMPRESSOR)


@pytest.mark.parametrize(
    ("stage", "zero", "name"),
    [
        (0, {}, "DeepSpeedEngine.allreduce_bucket"),
        (0, {}, "DeepSpeedEngine._take_model_step"),
        (1, {}, "DeepSpeedZeroOptimizer.average_tensor"),
        (2, {}, "DeepSpeedZeroOptimizer.allreduce_bucket"),
        (3, {}, "DeepSpeedZeroOptimizer_Stage3._DeepSpeedZeroOptimizer_Stage3__avg_scatter_grads"),
        (3, {}, "DeepSpeedZeroOptimizer_Stage3._DeepSpeedZeroOptimizer_Stage3__avg_scatter_contiguous_grads"),
        (0, {}, "TorchBackend.reduce_scatter_tensor"),
    ],
)
def test_a_missing_name(stage: int, zero: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = initialize(Terms(), config(stage, zero=zero))
    kind, _, method = name.partition(".")
    owners = [engine, engine.optimizer, deepspeed.comm.comm.cdb]
    owner = next(type(owner) for owner in owners if type(owner).__name__ == kind)
    monkeypatch.delattr(owner, method)
    place = "deepspeed.comm.comm.cdb" if kind == "TorchBackend" else kind
    text = f"DeepSpeed {deepspeed.__version__} lacks what gradwire needs: {place}.{method}. Supported:"
    with pytest.raises(UnsupportedError, match=re.escape(text)):
        attach(engine, COMPRESSOR)
    monkeypatch.undo()
    attach(engine, COMPRESSOR)  # nothing is left of the attempt
    detach(engine)


@STAGES
def test_a_first_step_past_gradwire(stage: int, compress: Attach) -> None:
    """As if a new release averaged by other means."""
    engine = initialize(Terms(), config(stage))
    averaging = compress(engine, COMPRESSOR).averaging
    for name in averaging.methods:
        original = getattr(averaging.host, name).__wrapped__
        setattr(averaging.host, name, original)
    with pytest.raises(UnsupportedError, match=f"nothing was compressed: DeepSpeed {deepspeed.__version__} has not"):
        train(engine, 1)
    for name in averaging.methods:
        delattr(averaging.host, name)


@STAGES
def test_a_model_of_which_all_would_travel_dense(stage: int, compress: Attach) -> None:
    engine = initialize(Terms(), config(stage))
    with pytest.raises(ConfigError, match=r"compresses none of the gradients.*below min_numel=1048576.*; lower"):
        compress(engine, SizePolicy(COMPRESSOR, min_numel=1 << 20))
    train(engine, 1)


def test_a_parameter_that_was_added_afterwards(engine: Any, compress: Attach) -> None:
    compress(engine, COMPRESSOR)
    engine.module.late = torch.nn.Parameter(torch.zeros(2000))
    with pytest.raises(UnsupportedError, match="gradwire knows the parameters of the first 0 only"):
        train(engine, 1)


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 32, sparse=True)

    def forward(self, batch: int) -> torch.Tensor:
        return self.table(torch.arange(5)).square().sum()


def test_sparse_gradients(compress: Attach) -> None:
    engine = initialize(Words(), config(0))
    compress(engine, COMPRESSOR)
    with pytest.raises(UnsupportedError, match="sparse gradients, as of Embedding"):
        train(engine, 1)


def test_a_group_of_other_ranks(engine: Any, compress: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    compress(engine, COMPRESSOR)
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    monkeypatch.setattr(deepspeed.utils.groups, "_get_sequence_data_parallel_group", lambda: alone)
    everyone = list(range(dist.get_world_size()))
    text = f"over the ranks [{dist.get_rank()}], compression was attached for {everyone}"
    with pytest.raises(UnsupportedError, match=re.escape(text)):
        train(engine, 1)


@pytest.mark.parametrize(
    ("numel", "bounds", "options", "text"),
    [
        (6, None, {}, "DeepSpeed sums 5 elements where it was to average 6"),
        (5, (0, 5), {}, "DeepSpeed sums 5 elements where it was to average 5: gradwire does not know which"),
        (5, None, {"async_op": True}, "async_op=True, expected a sum"),
        (5, None, {"op": dist.ReduceOp.MAX}, "op=RedOpType.MAX and async_op=False, expected a sum"),
        (5, None, {"op": deepspeed.comm.ReduceOp.AVG}, "op=ReduceOp.AVG and async_op=False, expected a sum"),
    ],
)
def test_a_sum_of_something_else(
    numel: int, bounds: tuple[int, ...] | None, options: dict[str, Any], text: str, engine: Any, compress: Attach
) -> None:
    sums = compress(engine, COMPRESSOR).sums(Carried((), numel, bounds))
    with pytest.raises(UnsupportedError, match=re.escape(text)):
        sums.all_reduce(torch.ones(5), **options)


# The block of ds.json.


@STAGES
def test_the_block_attaches(stage: int) -> None:
    block = {"type": "topk", "ratio": 0.05, "min_numel": 1600, "warmup_steps": 1}
    engine = initialize(Terms(), config(stage, gradient_compression=block))
    train(engine, 1)
    assert not attachment_of(engine).statistics.buckets
    train(engine, 1, first=1)
    compressed = [tensor for tensor in attachment_of(engine).statistics.tensors if tensor.dense_reason is None]
    assert {tensor.name.partition("[")[0] for tensor in compressed} == {"terms.2.weight"}
    detach(engine)


def test_the_block_beside_an_optimizer_that_compresses() -> None:
    settings = config(0, optimizer={"type": "OneBitAdam", "params": {}}, gradient_compression={"type": "int8"})
    with pytest.raises(ConfigError, match="leave the gradient_compression out"):
        initialize(Terms(), settings)
