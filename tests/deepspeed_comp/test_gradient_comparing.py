"""What ranks compare before gradients are compressed; tests/parallel/deepspeed/test_mismatch.py does so in engines."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
import torch
from gradwire import MismatchError, TransportError, TransportTimeout, UnsupportedError
from gradwire.backends import Transport, run_ranks
from gradwire.deepspeed_comp.gradients.comparing import agree_on, comparing_models, described
from support.listening import Listening


def test_a_model_is_described_by_its_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2, dtype=torch.bfloat16), torch.nn.Linear(2, 1, bias=False))
    model[1].weight.requires_grad_(False)
    vars(model[0].bias)["ds_shape"] = torch.Size([7])  # where it is partitioned
    assert described(model) == [
        "parameter 0.weight: (2, 3) torch.bfloat16",
        "parameter 0.bias: (7,) torch.bfloat16",
        "parameter 1.weight: (1, 2) torch.float32, frozen",
    ]


def test_ranks_that_differ() -> None:
    def rank_main(transport: Transport) -> None:
        agree_on(["a", "b"], transport, 5.0)
        with pytest.raises(MismatchError, match="rank 0 has «b0», rank 1 has «b1»"):
            agree_on(["a", f"b{transport.rank}"], transport, 5.0)

    run_ranks(2, rank_main)


@pytest.mark.parametrize("stays", [False, True])
def test_a_rank_that_does_not_compress(stays: bool) -> None:
    over = threading.Event()

    def rank_main(transport: Transport) -> None:
        if transport.rank == 1:
            over.wait(5.0 if stays else 0.0)
            return
        words = "Every rank must compress gradients: write the block gradient_compression in the ds.json of all"
        with pytest.raises(TransportTimeout if stays else TransportError, match=words):
            agree_on(["a"], transport, 0.2)
        over.set()

    run_ranks(2, rank_main)


def test_one_rank_alone_sends_nothing() -> None:
    def rank_main(transport: Transport) -> None:
        listening = Listening(transport)
        agree_on(["a"], listening, 5.0)
        assert not listening.sent

    run_ranks(1, rank_main)


class Host:
    """Stands for an engine; its model goes round while it is made."""

    sent = 0

    def _broadcast_model(self) -> None:
        self.sent += 1


def test_the_model_is_compared_while_an_engine_is_made_and_not_later(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    module = "gradwire.deepspeed_comp.gradients.comparing"
    monkeypatch.setattr(f"{module}.TorchTransport", lambda group: group)
    monkeypatch.setattr(f"{module}.agree_on", lambda *args: seen.append(args))
    host: Any = Host()
    host.module, host.seq_data_parallel_group = torch.nn.Linear(2, 1, bias=False), "replicas"
    with suppress(ArithmeticError), comparing_models(host, 7.0):
        host._broadcast_model()
        raise ArithmeticError
    assert seen == [(["parameter weight: (1, 2) torch.float32"], "replicas", 7.0)]
    host._broadcast_model()
    assert (host.sent, len(seen)) == (2, 1)
    assert "_broadcast_model" not in vars(host)


def test_a_release_that_sends_models_by_other_means() -> None:
    words = r"lacks what gradwire needs: object\._broadcast_model"
    with pytest.raises(UnsupportedError, match=words), comparing_models(object(), 7.0):
        pass
