"""What the 1-bit optimizers refuse, with OneBitAdam as the example."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire.backends import LocalTransport, run_ranks
from gradwire.compressors.errors import ConfigError, MismatchError, UnsupportedError, UsageError
from gradwire.deepspeed_comp.onebit_adam import OneBitAdam

from ..support.momentum import (
    OPTIONS,
    DeepSpeedEngine,
    Rank,
    trained,
)

pytestmark = pytest.mark.usefixtures("_local_groups")


def test_sparse_gradients_are_refused() -> None:
    def main(transport: LocalTransport) -> None:
        rank = Rank(transport, OneBitAdam, **OPTIONS)
        for parameter in rank.engine.module.values():
            parameter.grad = torch.ones_like(parameter).to_sparse()
        with pytest.raises(UnsupportedError, match="gradient for 'bias': make the embedding with sparse=False"):
            rank.optimizer.step()

    run_ranks(1, main)


def test_without_an_engine_there_is_nothing_to_work_for() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    with pytest.raises(UsageError, match=r"deepspeed\.initialize\(optimizer="):
        OneBitAdam([parameter]).step()


def test_zero_is_refused() -> None:
    def main(transport: LocalTransport) -> None:
        engine: Any = DeepSpeedEngine(transport)
        engine.stage = 2
        with pytest.raises(ConfigError, match=r'stage is 2.*use stage 0 with OneBitAdam, or "Adam" with a "gradient_'):
            OneBitAdam(engine.module.parameters(), engine)

    run_ranks(1, main)


def test_legacy_fusion_is_refused() -> None:
    def main(transport: LocalTransport) -> None:
        engine: Any = DeepSpeedEngine(transport)
        engine.legacy_fusion = True
        with pytest.raises(ConfigError, match="legacy_fusion is true"):
            OneBitAdam(engine.module.parameters(), engine)

    run_ranks(1, main)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gradient_average", False, 'gradient_allreduce_op is "sum"'),
        ("torch_autocast_z0_gradscaler", object(), "torch_autocast with float16"),
    ],
)
def test_what_the_engine_does_otherwise_on_each_rank_or_does_not_average_is_refused(
    name: str, value: object, text: str
) -> None:
    def main(transport: LocalTransport) -> None:
        engine: Any = DeepSpeedEngine(transport)
        setattr(engine, name, value)
        with pytest.raises(ConfigError, match=text):
            OneBitAdam(engine.module.parameters(), engine)

    run_ranks(1, main)


def test_experts_in_a_group_that_is_not_theirs_are_refused() -> None:
    expert = torch.nn.Parameter(torch.ones(3))
    setattr(expert, "allreduce", False)  # noqa: B010 - as DeepSpeed marks them
    with pytest.raises(ConfigError, match="group 1 holds experts"):
        OneBitAdam([{"params": [torch.nn.Parameter(torch.ones(3))]}, {"params": [expert]}])


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="freeze_step"):
        OneBitAdam([torch.nn.Parameter(torch.ones(3))], freezestep=3)


@pytest.mark.parametrize(("key", "value"), [("freeze_step", 5), ("lr", 0.5), ("betas", (0.5, 0.5))])
def test_ranks_that_were_told_different_things_hear_of_it_in_the_first_step(key: str, value: object) -> None:
    def main(transport: LocalTransport) -> None:
        options: dict[str, Any] = {key: value} if transport.rank == 1 else {}
        with pytest.raises(MismatchError, match=key):
            trained(transport, 1, **options)

    run_ranks(2, main)


def test_one_instance_for_two_engines_is_refused() -> None:
    """It would average compressed in the second one while that averages as well."""

    def main(transport: LocalTransport) -> None:
        rank = trained(transport, 1)
        rank.optimizer.meet(rank.engine)
        with pytest.raises(UsageError, match="make one for each engine"):
            rank.optimizer.meet(DeepSpeedEngine(transport))

    run_ranks(1, main)
