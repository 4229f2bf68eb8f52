from __future__ import annotations

from typing import Any

import pytest
from gradwire.backends import Transport
from gradwire.deepspeed_comp import engine, momentum


@pytest.fixture
def _local_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of tests/support/momentum.py: a group is a transport, and there are no checkpoints."""

    def transport_for(group: Transport, backend: str, cuda_aware: bool) -> Transport:
        return group

    def follow(host: object, name: str, part: Any) -> None:
        assert part.rank_state() is not None

    monkeypatch.setattr(engine, "transport_for", transport_for)
    monkeypatch.setattr(momentum, "follow", follow)
