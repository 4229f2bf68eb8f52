"""What a 1-bit optimizer says that it sent is what its transport was given."""

from __future__ import annotations

import pytest
from gradwire.backends import LocalTransport, run_ranks
from gradwire.compressors.errors import UsageError

from ..support.listening import Listening
from ..support.momentum import FREEZE, trained

pytestmark = pytest.mark.usefixtures("_local_groups")


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("steps", [FREEZE, FREEZE + 1, FREEZE + 5])
def test_sent_bytes_are_those_of_the_collectives(world_size: int, steps: int) -> None:
    def main(transport: LocalTransport) -> tuple[int, int]:
        listening = Listening(transport)
        said = trained(listening, steps).optimizer.statistics.total.sent_bytes
        heard = [sent for sent in listening.sent if not sent.name.startswith("engine.")]
        # ranks agree once about names and shapes, and on hosts: bytes that belong to no step
        once = ("fingerprint", ".hosts")
        return said, sum(sent.nbytes for sent in heard if not any(word in sent.name for word in once))

    for said, heard in run_ranks(world_size, main):
        assert said == heard
        assert (said > 0) == (steps > FREEZE and world_size > 1)


def test_groups_whose_gradients_are_averaged_count_too() -> None:
    def main(transport: LocalTransport) -> tuple[int, int]:
        def groups(module: dict[str, object]) -> list[dict[str, object]]:
            return [{"params": [module["row"]], "non_freeze": True}, {"params": [module["weight"], module["bias"]]}]

        rank = trained(transport, FREEZE, groups=groups)
        before = rank.optimizer.statistics.total.sent_bytes
        rank.train(lambda *_: None, [FREEZE])
        exact = rank.optimizer.exact.statistics.total.sent_bytes
        return exact, rank.optimizer.statistics.total.sent_bytes - before - exact

    for exact, momenta in run_ranks(2, main):
        assert exact == 4 * 3 * 700  # a ring of two ranks sends half of it twice
        assert momenta > 0


def test_with_legacy_nothing_is_said() -> None:
    def main(transport: LocalTransport) -> None:
        with pytest.raises(UsageError, match="legacy=True"):
            _ = trained(transport, 1, legacy=True).optimizer.statistics

    run_ranks(2, main)
