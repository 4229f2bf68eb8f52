"""Every exchange, over Horovod."""

from __future__ import annotations

import pytest
from gradwire import Compressor
from gradwire.horovod_comp import HorovodTransport
from support.exchanging import CASES, check_exchange


@pytest.mark.parametrize(("exchange", "codec"), CASES, ids=str)
def test_it_is_the_same_as_among_threads(
    transport: HorovodTransport, exchange: str, codec: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_exchange(transport, exchange, codec, monkeypatch)


def test_ranks_of_one_machine_are_on_one_host(transport: HorovodTransport) -> None:
    assert transport.host == 0
