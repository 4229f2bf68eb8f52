"""Every exchange, over torch.distributed."""

from __future__ import annotations

import pytest
from gradwire import Compressor
from gradwire.backends.torch_dist import TorchTransport
from support.exchanging import CASES, check_exchange


@pytest.mark.parametrize(("exchange", "codec"), CASES, ids=str)
def test_it_is_the_same_as_among_threads(
    transport: TorchTransport, exchange: str, codec: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_exchange(transport, exchange, codec, monkeypatch)


def test_ranks_of_one_machine_are_on_one_host(transport: TorchTransport) -> None:
    assert transport.host == 0
