"""Several ranks per host: the same laws as everywhere, and little on the hosts' links."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gradwire import FP16, Compressor, ConfigError, Int8, NoCompression, OneBit, PeerError, TopK
from gradwire.backends import GradientReducer, Transport, merge_states, run_ranks
from gradwire.backends.transport import Work
from support.listening import Listening
from support.reducing import (
    COMPRESSORS,
    SHAPES,
    Shapes,
    assert_ranks_equal,
    assert_states_equal,
    bits,
    copy_states,
    everything,
    exact_mean,
    gradient,
    ids,
    metas,
    one_step,
)
from support.truncating import Trap, Truncated

#: by rank, its host: in a row, taking turns, three hosts, three ranks each
PLACES = [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 1)]
FOUR = PLACES[0]
LAWFUL: list[Compressor] = [TopK(ratio=0.1), OneBit(block=64), Int8(block=32), TopK(ratio=0.2, values="int8")]


def reducer_of(transport: Transport, codec: Compressor, name: str = "r", shapes: Shapes = SHAPES) -> GradientReducer:
    reducer = GradientReducer(codec, transport, exchange="hierarchical", name=name, bucket_bytes=6000, timeout=10)
    reducer.register(metas(shapes))
    return reducer


@pytest.mark.parametrize("hosts", PLACES, ids=str)
@pytest.mark.parametrize("codec", COMPRESSORS, ids=ids)
def test_all_ranks_hold_the_same_and_owe_the_rest(codec: Compressor, hosts: Sequence[int]) -> None:
    """After three steps, what was given and what is owed is what came in; casts and rounding at random aside."""

    def rank_main(transport: Transport) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
        reducer = reducer_of(transport, codec)
        means = [one_step(reducer, SHAPES, step, donate=step == 1) for step in range(3)]
        return means, {name: reducer.pending(name) for name in SHAPES}

    ranks = run_ranks(len(hosts), rank_main, hosts=hosts)
    assert_ranks_equal([means for means, _ in ranks])
    if not everything(codec).elementwise_state and not isinstance(codec, NoCompression):
        return
    for name, shape in SHAPES.items():
        given = torch.stack([step[name].double() for step in ranks[0][0]]).sum(0)
        owed = torch.stack([pending[name].double() for _, pending in ranks]).sum(0)
        exact = sum(exact_mean(name, shape, len(hosts), step) for step in range(3))
        torch.testing.assert_close(given + owed, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hosts", PLACES, ids=str)
def test_without_compression_it_is_the_mean(hosts: Sequence[int]) -> None:
    def rank_main(transport: Transport) -> dict[str, torch.Tensor]:
        return one_step(reducer_of(transport, NoCompression()), SHAPES, 0)

    for means in run_ranks(len(hosts), rank_main, hosts=hosts):
        for name, shape in SHAPES.items():
            torch.testing.assert_close(means[name].double(), exact_mean(name, shape, len(hosts), 0))


class ByHost(Listening):
    """Counts what leaves the host."""

    def __init__(self, inner: Transport, hosts: Sequence[int]) -> None:
        super().__init__(inner)
        self._away = [host != hosts[self.rank] for host in hosts]
        self.link_bytes = 0

    def all_to_all(self, tensor: torch.Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int], name: str) -> Work:
        self.link_bytes += sum(size for size, away in zip(send_sizes, self._away, strict=True) if away)
        return super().all_to_all(tensor, send_sizes, recv_sizes, name)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 0, 0, 0, 1, 1, 1, 1), (0, 0, 1, 1, 2, 2)], ids=str)
@pytest.mark.parametrize("codec", [OneBit(), TopK(), Int8()], ids=ids)
def test_links_carry_the_payload_once_however_many_ranks_a_host_has(codec: Compressor, hosts: Sequence[int]) -> None:
    """2c(H-1)/H per host, and headers; the statistics and the prediction say what was sent."""
    shapes = {"w": (256, 512), "v": (128, 100)}

    def rank_main(transport: Transport) -> tuple[int, int, GradientReducer]:
        listening = ByHost(transport, hosts)
        reducer = GradientReducer(codec, listening, exchange="hierarchical")
        reducer.register(metas(shapes))
        listening.sent.clear()
        one_step(reducer, shapes, 0)
        return listening.link_bytes, sum(sent.nbytes for sent in listening.sent), reducer

    ranks = run_ranks(len(hosts), rank_main, hosts=hosts)
    count, (prediction,) = len(set(hosts)), ranks[0][2].statistics.buckets[0].predictions
    payload = sum(everything(codec).nbytes(meta) for meta in metas(shapes))
    links = [sum(link for (link, *_), at in zip(ranks, hosts, strict=True) if at == host) for host in range(count)]
    assert max(links) == prediction.link_bytes <= 2 * payload * (count - 1) / count + 4000
    assert [sent for _, sent, _ in ranks] == [reducer.statistics.last.sent_bytes for *_, reducer in ranks]
    assert max(sent for _, sent, _ in ranks) == prediction.sent_bytes
    assert len({reducer.statistics.buckets[0].predictions for *_, reducer in ranks}) == 1


@pytest.mark.parametrize("bad", range(4))
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_refused_step_never_happened(bad: int, value: float) -> None:
    def rank_main(transport: Transport) -> None:
        reducers = [reducer_of(transport, codec, f"r{number}") for number, codec in enumerate(LAWFUL)]
        clean = [reducer_of(transport, codec, f"c{number}") for number, codec in enumerate(LAWFUL)]
        for reducer, other in zip(reducers, clean, strict=True):
            one_step(reducer, SHAPES, 0)
            one_step(other, SHAPES, 0)
            before = copy_states(reducer)
            for name, shape in SHAPES.items():
                grad = gradient(name, shape, transport.rank, 9)
                if name == "w2" and transport.rank == bad:
                    grad[5, 5] = value
                reducer.ready(name, grad)
            assert all(reducer.wait(name).isnan().all() for name in SHAPES)
            assert_states_equal(copy_states(reducer), before)
            again, expected = one_step(reducer, SHAPES, 1), one_step(other, SHAPES, 1)
            assert {name: bits(mean) for name, mean in again.items()} == {n: bits(m) for n, m in expected.items()}

    run_ranks(4, rank_main, hosts=FOUR)


@pytest.mark.parametrize("failing", range(4))
def test_a_codec_that_raises_on_one_rank_is_heard_of_on_all(failing: int) -> None:
    codec = Truncated(trap=Trap(rank=failing, step=0, tensor="w"))

    def rank_main(transport: Transport) -> Exception:
        reducer = reducer_of(transport, everything(codec), shapes={"w": (40, 40)})
        with pytest.raises((ArithmeticError, PeerError)) as caught:
            one_step(reducer, {"w": (40, 40)}, 0)
        assert not any(reducer._states.values())
        return caught.value

    errors = run_ranks(4, rank_main, hosts=FOUR)
    assert isinstance(errors[failing], ArithmeticError)
    for rank, error in enumerate(errors):
        assert rank == failing or f"failed on rank {failing};" in str(error)


def test_a_run_that_was_saved_and_loaded_is_the_same_run() -> None:
    def rank_main(transport: Transport) -> None:
        for number, codec in enumerate([*LAWFUL, FP16(error_feedback=True)]):
            straight, second = (reducer_of(transport, everything(codec), f"{name}{number}") for name in "ab")
            for step in range(2):
                one_step(straight, SHAPES, step)
            second.load_state_dict(straight.state_dict())
            for step in (2, 3):
                means, found = one_step(straight, SHAPES, step), one_step(second, SHAPES, step)
                assert {name: bits(found[name]) for name in SHAPES} == {name: bits(means[name]) for name in SHAPES}

    run_ranks(4, rank_main, hosts=FOUR)


@pytest.mark.parametrize(("world_size", "hosts"), [(1, None), (3, None), (4, None), (6, PLACES[2]), (4, PLACES[1])])
def test_elsewhere_nothing_is_lost(world_size: int, hosts: Sequence[int] | None) -> None:
    """What is owed stays the same from here to other places and numbers of ranks, and back."""
    for codec in LAWFUL:
        made = run_ranks(4, lambda transport, codec=codec: debts(transport, codec, None), hosts=FOUR)
        there = Moved(codec, merge_states([state for _, state in made]), hosts is not None)
        moved = run_ranks(world_size, there, hosts=hosts)
        back = run_ranks(4, Moved(codec, merge_states([state for _, state in moved]), True), hosts=FOUR)
        for name in SHAPES:
            owed = [sum(debt[name].double() for debt, _ in ranks) for ranks in (made, moved, back)]
            torch.testing.assert_close(owed[1], owed[0], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(owed[2], owed[0], rtol=1e-6, atol=1e-6)


Debts = tuple[dict[str, torch.Tensor], dict[str, object]]


def debts(transport: Transport, codec: Compressor, state: dict[str, object] | None, levels: bool = True) -> Debts:
    """What a rank owes after loading a state, or after two steps; and what it saves."""
    exchange = "hierarchical" if levels else "auto"
    reducer = GradientReducer(everything(codec), transport, exchange=exchange, bucket_bytes=6000)
    reducer.register(metas(SHAPES))
    if state is None:
        for step in range(2):
            one_step(reducer, SHAPES, step)
    else:
        reducer.load_state_dict(state)
    return {name: reducer.pending(name) for name in SHAPES}, reducer.state_dict()


class Moved:
    """Loads a merged state on every rank."""

    def __init__(self, codec: Compressor, state: dict[str, object], levels: bool) -> None:
        self._codec, self._state, self._levels = codec, state, levels

    def __call__(self, transport: Transport) -> Debts:
        return debts(transport, self._codec, self._state, self._levels)


def test_a_state_of_a_rank_fits_only_where_the_ranks_are_placed_alike() -> None:
    def rank_main(transport: Transport) -> None:
        reducer = reducer_of(transport, TopK(ratio=0.1))
        one_step(reducer, SHAPES, 0)
        flat = GradientReducer(TopK(ratio=0.1), transport, exchange="gather", name="flat", bucket_bytes=6000)
        flat.register(metas(SHAPES))
        for state, other in ((reducer.state_dict(), flat), (flat.state_dict(), reducer)):
            one_step(flat, SHAPES, flat.step)
            if state["step"]:
                with pytest.raises(ConfigError, match=r"this rank's part of 'w\d' is \d+:\d+ in it"):
                    other.load_state_dict(state)

    run_ranks(4, rank_main, hosts=FOUR)


@pytest.mark.parametrize("hosts", [None, (0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 2, 3)], ids=str)
def test_without_two_levels_it_is_refused_on_every_rank(hosts: Sequence[int] | None) -> None:
    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(TopK(), transport, exchange="hierarchical")
        with pytest.raises(ConfigError, match=r"needs two hosts or more with as many ranks each"):
            reducer.register(metas(SHAPES))

    run_ranks(4, rank_main, hosts=hosts)


def test_one_rank_alone_needs_no_hosts() -> None:
    (means,) = run_ranks(1, lambda transport: one_step(reducer_of(transport, TopK()), SHAPES, 0))
    assert all(bits(means[name]) == bits(gradient(name, shape, 0, 0)) for name, shape in SHAPES.items())
