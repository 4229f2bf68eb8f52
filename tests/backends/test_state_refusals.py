"""States that do not fit are refused by name, with both values, and change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradwire import ConfigError, OneBit, TopK
from gradwire.backends import BucketReducer, GradientReducer, Part, Transport, merge_states, run_ranks
from support.reducing import bits, gradient, metas, one_step

State = dict[str, Any]
SHAPES = {"v": (33, 64), "w": (64, 64)}
PARTS = [Part("v", (33, 64), 0, 2112), Part("w", (64, 64), 2112, 4096)]

Edit = Callable[[State], object]


def gradients(transport: Transport, compressor: Any = None) -> GradientReducer:
    reducer = GradientReducer(compressor or OneBit(), transport, name="g", exchange="two_phase")
    reducer.register(metas(SHAPES))
    one_step(reducer, SHAPES, 0)
    return reducer


def buckets(transport: Transport, compressor: Any = None) -> BucketReducer:
    reducer = BucketReducer(compressor or OneBit(), transport, name="b", exchange="two_phase")
    reducer.all_reduce(filled(transport.rank), PARTS)
    reducer.commit()
    return reducer


def filled(rank: int) -> torch.Tensor:
    return torch.cat([gradient(name, shape, rank, 0).view(-1) for name, shape in SHAPES.items()])


def frozen(state: State) -> object:
    """Everything in a state, comparable."""
    if isinstance(state, dict):
        return {key: frozen(value) for key, value in state.items()}
    return bits(state) if isinstance(state, torch.Tensor) else state


#: what is done to a state of rank 0 of 2, and what the error says
EDITS: dict[str, tuple[Edit, str]] = {
    "version": (lambda state: state.update(version=1), "version is 1, this gradwire reads 2"),
    "missing key": (lambda state: state.pop("servers"), "'servers' is missing"),
    "unknown key": (lambda state: state.update(more=1), "'more' is unknown"),
    "compressor": (
        lambda state: state.update(compressor="TopK()"),
        r"compressor is TopK\(\), this reducer has SizePolicy\(compressor=ErrorFeedback\(compressor=OneBit",
    ),
    "compressor's type": (lambda state: state.update(compressor=3), "compressor is 3"),
    "rank": (lambda state: state.update(rank=1), "of rank 1 of 2, this is rank 0 of 2.*merge_states"),
    "world size": (lambda state: state.update(world_size=4), "of rank 0 of 4, this is rank 0 of 2"),
    "rank beyond": (lambda state: state.update(rank=2), "rank is 2 of 2"),
    "half merged": (lambda state: state.update(rank=None), "world_size 2, not 1"),
    "merged with servers": (lambda state: state.update(rank=None, world_size=1), "servers are not empty"),
    "step": (lambda state: state.update(step=-1), "step is -1"),
    "step's type": (lambda state: state.update(step=True), "step is True"),
    "calls": (lambda state: state.update(calls="3"), "calls is '3'"),
    "shape": (
        lambda state: state["shapes"].update(w=[32, 128]),
        r"tensor 'w' is \(32, 128\) in it, and \(64, 64\) in this reducer",
    ),
    "size": (lambda state: state["shapes"].update(w=[64, -64]), "a size of 'w' is -64"),
    "shape's type": (lambda state: state["shapes"].update(w="64"), "shape of 'w' is '64'"),
    "shapes": (lambda state: state.update(shapes=[]), "shapes is a list, expected a dict"),
    "key": (lambda state: state["shapes"].update({3: [1]}), "the key 3"),
    "nameless residual": (lambda state: state["shapes"].pop("w"), "has 'w', which shapes lacks"),
    "length": (
        lambda state: state["residuals"].update(w=torch.zeros(4095)),
        "residual of 'w' has 4095 values, its shape 4096",
    ),
    "dtype": (lambda state: state["residuals"].update(w=torch.zeros(4096).bfloat16()), "'w' are torch.bfloat16"),
    "dimensions": (lambda state: state["residuals"].update(w=torch.zeros(64, 64)), r"'w' are .*\(64, 64\)"),
    "no tensor": (lambda state: state["residuals"].update(w=[0.0]), r"'w' are \[0.0\]"),
    "not finite": (lambda state: state["residuals"]["w"].fill_(float("nan")), "'w' are not all finite"),
    "server": (lambda state: state["servers"].update(v=3), "server of 'v' is a int"),
    "server's keys": (lambda state: state["servers"]["v"].pop("start"), "the keys"),
    "server's start": (lambda state: state["servers"]["v"].update(start=-1), "start of 'v' is -1"),
    "server beyond": (
        lambda state: state["servers"]["v"].update(start=2112),
        "ends at element 4224, the tensor at 2112",
    ),
    "server's values": (lambda state: state["servers"]["v"].update(values=None), "'v' are None"),
    "counters": (lambda state: state["counters"].update(w={"saturated": -1}), "saturated of 'w' is -1"),
    "entries": (lambda state: state["entries"].update(w={"u": 3}), "u of 'w' is 3"),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("make", [gradients, buckets])
def test_what_does_not_fit_is_refused_and_nothing_changes(make: Callable[..., Any], edit: str) -> None:
    change, words = EDITS[edit]

    def rank_main(transport: Transport) -> None:
        reducer = make(transport)
        if transport.rank == 1:
            return
        state = reducer.state_dict()
        before = frozen(state)
        change(edited := copy.deepcopy(state))
        with pytest.raises(ConfigError, match=words):
            reducer.load_state_dict(edited)
        assert frozen(reducer.state_dict()) == before
        reducer.load_state_dict(state)

    run_ranks(2, rank_main)


@pytest.mark.parametrize("state", [None, [], 3, "state", {}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    def rank_main(transport: Transport) -> None:
        for reducer in (gradients(transport), buckets(transport)):
            with pytest.raises(ConfigError, match="cannot be used"):
                reducer.load_state_dict(state)

    run_ranks(1, rank_main)


def test_a_gradient_reducer_knows_its_tensors() -> None:
    def rank_main(transport: Transport) -> None:
        state = gradients(transport).state_dict()
        other = GradientReducer(OneBit(), transport, name="other", exchange="two_phase")
        with pytest.raises(ConfigError, match=r"tensor 'v' is \(33, 64\) in it, and not there in this reducer"):
            other.load_state_dict(state)
        other.register(metas({**SHAPES, "u": (3,)}))
        with pytest.raises(ConfigError, match=r"tensor 'u' is not there in it, and \(3,\) in this reducer"):
            other.load_state_dict(state)

    run_ranks(2, rank_main)


def test_a_gradient_reducer_with_other_buckets_takes_a_merged_state_only() -> None:
    def rank_main(transport: Transport) -> State:
        state = gradients(transport).state_dict()
        other = GradientReducer(OneBit(), transport, name="other", exchange="two_phase", bucket_bytes=1)
        other.register(metas(SHAPES))
        with pytest.raises(ConfigError, match=r"part of '[vw]' is \d+:\d+ in it, and \d+:\d+ in this reducer"):
            other.load_state_dict(state)
        assert other.step == 0
        return state

    merged = merge_states(run_ranks(2, rank_main))

    def loading(transport: Transport) -> None:
        other = GradientReducer(OneBit(), transport, exchange="two_phase", bucket_bytes=1)
        other.register(metas(SHAPES))
        other.load_state_dict(merged)
        assert other.step == 1

    run_ranks(2, loading)


def test_a_bucket_reducer_that_has_seen_nothing_compares_with_the_shapes_it_is_given() -> None:
    def rank_main(transport: Transport) -> None:
        state = buckets(transport).state_dict()
        fresh = BucketReducer(OneBit(), transport, name="fresh")
        with pytest.raises(ConfigError, match=r"tensor 'w' is \(64, 64\) in it, and not there in this reducer"):
            fresh.load_state_dict(state, shapes={"v": (33, 64)})
        with pytest.raises(ConfigError, match=r"tensor 'v' is \(33, 64\) in it, and \(64, 33\) in this reducer"):
            fresh.load_state_dict(state, shapes={"v": (64, 33), "w": (64, 64)})
        assert fresh.step == 0
        fresh.load_state_dict(state, shapes={**SHAPES, "u": (3,)})
        assert fresh.step == 1

    run_ranks(2, rank_main)


def saved(transport: Transport) -> State:
    return buckets(transport).state_dict()


@pytest.mark.parametrize(
    ("pick", "words"),
    [
        (lambda states: [], "none to merge"),
        (lambda states: states[:2], r"ranks \[0, 1\] were given, expected one of each of \[0, 1, 2\]"),
        (lambda states: [*states[:2], states[1]], r"ranks \[0, 1, 1\]"),
        (lambda states: [*states, states[2]], r"ranks \[0, 1, 2, 2\]"),
        (lambda states: [merge_states(states)], "merged already"),
        (lambda states: [*states[:2], {**states[2], "step": 9}], "step is 1 on rank 0 and 9 on rank 2"),
        (lambda states: [*states[:2], {**states[2], "world_size": 4}], "world_size is 3 on rank 0 and 4 on rank 2"),
        (lambda states: [*states[:2], {**states[2], "compressor": "x"}], "compressor is .* on rank 0 and x on rank 2"),
        (lambda states: [*states[:2], {}], "'version' is missing"),
    ],
)
def test_states_that_do_not_belong_together_are_not_merged(
    pick: Callable[[list[State]], list[State]], words: str
) -> None:
    states = run_ranks(3, saved)
    with pytest.raises(ConfigError, match=words):
        merge_states(pick(states))


def test_the_order_of_the_states_does_not_matter() -> None:
    states = run_ranks(3, saved)
    assert frozen(merge_states(states)) == frozen(merge_states(states[::-1]))


def test_a_state_of_another_compressor_is_refused_with_its_options() -> None:
    def rank_main(transport: Transport) -> None:
        state = gradients(transport, TopK(ratio=0.1)).state_dict()
        with pytest.raises(ConfigError, match=r"TopK\(ratio=0\.1.*TopK\(ratio=0\.2"):
            gradients(transport, TopK(ratio=0.2)).load_state_dict(state)

    run_ranks(1, rank_main)
