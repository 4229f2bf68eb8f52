"""Residuals of all ranks are saved with the engine's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradwire import ConfigError, OneBit, TopK
from gradwire.deepspeed_comp import attach, detach
from support.zero import Net, Terms, assert_ranks_equal, config, exact, initialize, owed, parameters, train

from .conftest import Attach

ADAM: dict[str, Any] = {"optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}}
DTYPES: dict[str, dict[str, Any]] = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}}
NAMES = [f"terms.{index}.weight" for index in (0, 2)]


class Bf16Net(Net):
    """The same in the engine's dtype."""

    def forward(self, batch: int) -> torch.Tensor:
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(batch))
        return (self.layers(x.bfloat16()).float() - (2 * x @ self.teacher).tanh()).square().mean()


@pytest.mark.parametrize(("dtype", "compressor"), [("fp32", OneBit()), ("bf16", TopK(ratio=0.1))], ids=repr)
@pytest.mark.parametrize("stage", range(4))
def test_a_resumed_run_is_the_same_bit_for_bit(
    stage: int, dtype: str, compressor: Any, folder: Path, compress: Attach
) -> None:
    settings = config(stage, accumulation=2, **ADAM, **DTYPES[dtype])
    model = Net if dtype == "fp32" else Bf16Net
    engine = initialize(model(), settings)
    attach(engine, compressor)
    train(engine, 3)
    engine.save_checkpoint(str(folder))
    train(engine, 3, first=3)
    detach(engine)
    resumed = initialize(model(), settings)
    attachment = compress(resumed, compressor)
    resumed.load_checkpoint(str(folder))
    train(resumed, 3, first=3)
    assert attachment.statistics.steps == 6
    found = parameters(resumed)
    for name, parameter in parameters(engine).items():
        assert torch.equal(parameter, found[name])


@pytest.mark.parametrize(
    ("stage", "top"),
    [(0, {}), (0, {"prescale_gradients": True}), (1, {}), (2, {}), (3, {})],
)
def test_a_merged_state_owes_as_much_at_any_stage(stage: int, top: dict[str, Any], compress: Attach) -> None:
    """Stages divide gradients by the world size before or after they are summed; what is saved knows of it."""
    source = initialize(Terms(), config(0))
    first = compress(source, OneBit())
    train(source, 2)
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, first.rank_state())
    engine = initialize(Terms(), config(stage, **top))
    train(engine, 2)
    attachment = compress(engine, OneBit())
    attachment.load_rank_state(attachment.merge_rank_states(states))
    for name in NAMES:
        torch.testing.assert_close(owed(attachment, name), owed(first, name), rtol=0, atol=1e-5)
    train(engine, 1, first=2)
    assert_ranks_equal(engine)
    expected, found = exact(Terms(), 3), parameters(engine)
    for name in NAMES:  # two exact steps, and what compressed ones would have left out of them
        gained = owed(first, name).double() - owed(attachment, name).double()
        torch.testing.assert_close(found[name].double() + gained, expected[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"unit": 0.0}, "the unit of this state is 0.0, expected a finite number above 0"),
        ({"unit": "1"}, "the unit of this state is '1'"),
        ({"more": 1}, r"this state has the keys \['more', 'reducer', 'unit'\]"),
        ({"reducer": {}}, "'version' is missing"),
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any], text: str, compress: Attach) -> None:
    engine = initialize(Terms(), config(0))
    attachment = compress(engine, TopK(ratio=0.05))
    train(engine, 1)
    before = attachment.pending("terms.0.weight")
    with pytest.raises(ConfigError, match=text):
        attachment.load_state_dict(attachment.state_dict() | change)
    assert torch.equal(attachment.pending("terms.0.weight"), before)


def test_states_of_different_steps_are_not_merged(compress: Attach) -> None:
    engine = initialize(Terms(), config(0))
    attachment = compress(engine, TopK(ratio=0.05))
    train(engine, 1)
    state = attachment.state_dict()
    with pytest.raises(ConfigError, match=r"the ranks' states have the units \(1.0, 2.0\), expected one"):
        attachment.merge_rank_states([state, state | {"unit": 2.0}])
