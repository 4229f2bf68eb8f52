"""Learning-rate schedules, and the optimizer's own `state_dict`."""

from __future__ import annotations

import copy

import horovod.torch as hvd
import pytest
import torch
from gradwire.horovod_comp import NoCompression, TopK
from support.horovod_training import assert_ranks_equal, loss, model, states, train, values, wrapped

pytestmark = pytest.mark.usefixtures("hvd")


def scheduled(compression: object) -> torch.Tensor:
    net = model()
    optimizer = wrapped(net, compression, torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(6):
        train(net, optimizer, [step])
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.2 * 0.5**3
    return values(net)


def test_a_schedule_equals_stock_horovod() -> None:
    expected = scheduled(hvd.Compression.none)
    torch.testing.assert_close(scheduled(NoCompression()), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("groups", [None, 2], ids=["hooks", "groups"])
def test_a_round_trip_in_mid_training_changes_nothing(groups: int | None) -> None:
    results = []
    for round_trip in (False, True):
        net = model()
        optimizer = wrapped(
            net, TopK(ratio=0.2, min_numel=8), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), groups=groups
        )
        train(net, optimizer, range(3))
        if round_trip:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(net, optimizer, range(3, 6))
        results.append(values(net))
    assert torch.equal(*results)


@pytest.mark.parametrize("groups", [None, 2], ids=["hooks", "groups"])
def test_loading_after_backward_drops_the_step_and_keeps_the_residuals(groups: int | None) -> None:
    results = []
    for dropped in (False, True):
        net = model()
        compression = TopK(ratio=0.2, min_numel=8)
        optimizer = wrapped(net, compression, groups=groups)
        train(net, optimizer, range(2))
        optimizer.zero_grad()
        if dropped:
            before = states(compression)
            loss(net, 77).backward()
            optimizer.load_state_dict(optimizer.state_dict())
            assert states(compression) == before
        train(net, optimizer, range(2, 5))
        results.append((values(net), states(compression)))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_the_dropped_step_used_other_parameters_than_the_next_one() -> None:
    """So that no gradient comes twice, which would give it away."""
    results = []
    for dropped in (False, True):
        net = torch.nn.ModuleList([model(1), model(2)])
        compression = TopK(ratio=0.2, min_numel=8)
        optimizer = wrapped(net, compression)
        for step in range(4):
            optimizer.zero_grad()
            if dropped and step == 2:
                loss(net[hvd.rank() % 2], 99).backward()
                optimizer.load_state_dict(optimizer.state_dict())
                optimizer.zero_grad()
            loss(net[1 - hvd.rank() % 2], step).backward()
            optimizer.step()
            assert_ranks_equal(net.parameters())
        results.append((values(net), states(compression)))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
