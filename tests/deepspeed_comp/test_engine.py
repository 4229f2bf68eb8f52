"""What is read of an engine: who averages with whom, over what, and what does not go together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, run_ranks
from gradwire.compressors.errors import ConfigError
from gradwire.deepspeed_comp import engine as engines
from gradwire.deepspeed_comp.engine import Scopes, find_engine, loss_scale_fault, parameter_names, transport_for

from ..support.momentum import DeepSpeedEngine, PipelineEngine


def alone() -> Any:
    return DeepSpeedEngine(LocalTransport.group(1)[0])


# Finding it.


class Caller(DeepSpeedEngine):
    """Derived from an engine, and some frames away."""

    def call(self) -> object:
        class Wrapper:
            def step(self) -> object:
                return find_engine()

        return Wrapper().step()


def test_the_engine_is_found_among_the_callers() -> None:
    caller = Caller(LocalTransport.group(1)[0])
    assert caller.call() is caller
    assert find_engine() is None


# Scopes.


@pytest.fixture
def _local_groups_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "transport_for", lambda group, backend, cuda_aware: group)


@pytest.mark.usefixtures("_local_groups_only")
def test_scopes_and_what_a_local_gradient_counts_in_them() -> None:
    def main(transport: LocalTransport) -> None:
        engine: Any = DeepSpeedEngine(transport)
        replicas = LocalTransport.group(2)[0]
        engine.expert_data_parallel_group["ep_size_2"] = replicas
        engine.sequence_parallel_size = 2
        scopes = Scopes(engine, "gloo", False)
        dense, experts = scopes.of({}), scopes.of({"moe": True, "name": "ep_size_2"})
        assert (dense.transport, dense.factor) == (transport, 2.0)
        assert (experts.transport, experts.factor) == (replicas, 0.5)
        assert scopes.of({"moe": False}) is dense is scopes.dense
        assert scopes.of({"moe": True, "name": "ep_size_2"}) is experts

    run_ranks(4, main)


@pytest.mark.usefixtures("_local_groups_only")
def test_a_pipeline_averages_over_the_replicas_of_its_stage() -> None:
    engine: Any = PipelineEngine(LocalTransport.group(4)[0])
    engine.pipeline_parallelism = True
    replicas = LocalTransport.group(2)[1]
    engine.mpu = SimpleNamespace(get_data_parallel_group=lambda: replicas)
    dense = Scopes(engine, "gloo", False).dense
    assert (dense.transport, dense.factor) == (replicas, 1.0)


# Transports.


@pytest.mark.parametrize("backend", ["nccl", "gloo", "compressed"])
def test_backends_go_over_the_process_group(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "TorchTransport", lambda group: ("torch", group))
    assert transport_for("group", backend) == ("torch", "group")


def test_mpi_is_taken_if_its_ranks_are_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MpiTransport", lambda *, cuda_aware: SimpleNamespace(rank=1, world_size=3))
    monkeypatch.setattr(engines, "dist", SimpleNamespace(get_rank=lambda group: 1, get_world_size=lambda group: 3))
    assert transport_for("group", "mpi").rank == 1
    monkeypatch.setattr(engines, "dist", SimpleNamespace(get_rank=lambda group: 1, get_world_size=lambda group: 2))
    with pytest.raises(ConfigError, match=r"rank 1 of 3 of MPI but rank 1 of 2 of the group.*--launcher openmpi"):
        transport_for("group", "mpi")


# Names.


def test_parameters_have_the_models_names_and_flattened_ones_their_place() -> None:
    engine = alone()
    flat = torch.nn.Parameter(torch.ones(3))
    names = parameter_names(engine, [{"params": [engine.module["bias"]]}, {"params": [engine.module["row"], flat]}])
    assert names == {engine.module["bias"]: "bias", engine.module["row"]: "row", flat: "group1.1"}


# DeepSpeed's loss scale.


@pytest.mark.parametrize(
    ("version", "stage", "fp16", "faulty"),
    [
        ((0, 18, 9), 0, True, False),
        ((0, 19, 0), 0, True, True),
        ((0, 19, 8), 0, True, True),
        ((0, 19, 9), 0, True, False),
        ((0, 19, 8), 1, True, False),
        ((0, 19, 8), 0, False, False),
    ],
)
def test_where_the_loss_scale_is_wrong(
    version: tuple[int, int, int], stage: int, fp16: bool, faulty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "VERSION", version)
    engine = alone()
    engine.stage, engine.fp16 = stage, fp16
    text = loss_scale_fault(engine)
    assert (text is not None) is faulty
    if text is not None:
        assert f"DeepSpeed 0.19.{version[2]} with fp16" in text
        assert "Use bf16" in text
