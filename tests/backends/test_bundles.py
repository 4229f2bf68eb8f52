"""Little tensors that travel as they are travel as one, and nobody can tell from the results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire import Compressor, Int8, NoCompression, OneBit, SizePolicy, TensorMeta, TopK, with_defaults
from gradwire.backends import GradientReducer, Transport, bundles, run_ranks
from gradwire.backends.bucket import Slot
from gradwire.compressors import choose
from hypothesis import given
from hypothesis import strategies as st
from support.reducing import assert_ranks_equal, gradient

HOSTS = (0, 0, 1, 1)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: name -> shape and dtype
TENSORS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "w1": ((60, 40), torch.float32),
    "b1": ((60,), torch.float32),
    "half": ((9,), torch.float16),
    "scalar": ((), torch.float32),
    "w2": ((40, 60), torch.float32),
    "nothing": ((0, 3), torch.float32),
    "large and dense": ((70000,), torch.float32),
    "b2": ((40,), torch.float32),
    "half too": ((3, 3), torch.float16),
}
METAS = [TensorMeta(name=name, shape=shape, dtype=dtype) for name, (shape, dtype) in TENSORS.items()]


def slot(number: int, numel: int, dtype: torch.dtype, dense: bool) -> Slot:
    codec: Compressor = NoCompression() if dense else Int8()
    return Slot(TensorMeta(name=str(number), shape=(numel,), dtype=dtype), codec, "little" if dense else None)


@given(st.lists(st.tuples(st.integers(0, 2 * bundles.LITTLE), st.sampled_from(DTYPES), st.booleans()), max_size=12))
def test_every_slot_is_in_one_bundle(kinds: list[tuple[int, torch.dtype, bool]]) -> None:
    slots = [slot(number, *kind) for number, kind in enumerate(kinds)]
    made = bundles.bundles(slots)
    assert sorted(member for bundle in made for member in bundle.members) == list(range(len(slots)))
    for bundle in made:
        members = [slots[member] for member in bundle.members]
        assert bundle.slot.meta.numel == sum(member.meta.numel for member in members)
        assert {member.meta.dtype for member in members} == {bundle.slot.meta.dtype}
        if len(members) > 1:
            assert all(member.reason and member.meta.numel <= bundles.LITTLE for member in members)
    joined = [bundle.slot.meta.dtype for bundle in made if len(bundle.members) > 1]
    assert len(joined) == len(set(joined))


def test_without_bundles_slots_stay_in_their_order() -> None:
    slots = [slot(0, 5, torch.float32, True), slot(1, 5000, torch.float32, False), slot(2, 5, torch.float16, True)]
    assert [bundle.slot for bundle in bundles.bundles(slots)] == slots


def steps_of(transport: Transport, codec: Compressor, **options: Any) -> tuple[list[dict[str, torch.Tensor]], Any]:
    reducer = GradientReducer(codec, transport, timeout=20, **options)
    reducer.register(METAS)
    steps = []
    for step in range(3):
        for meta in METAS:
            reducer.ready(
                meta.name, gradient(meta.name, meta.shape, transport.rank, step, meta.dtype), donate=step == 1
            )
        # some ask for a sum, some for a mean
        steps.append({meta.name: reducer.wait(meta.name, 1.0 + number % 2) for number, meta in enumerate(METAS)})
    return steps, reducer


@pytest.mark.parametrize("exchange", ["gather", "two_phase", "hierarchical"])
@pytest.mark.parametrize("codec", [TopK(ratio=0.1), OneBit(block=64), NoCompression()], ids=repr)
def test_nobody_can_tell_from_the_results(codec: Compressor, exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_main(transport: Transport) -> list[dict[str, torch.Tensor]]:
        steps, reducer = steps_of(transport, codec, exchange=exchange, name=f"little {bundles.LITTLE}")
        kept = {name: reducer.pending(name) for name in TENSORS}
        assert all(mean.dtype == TENSORS[name][1] and mean.shape == TENSORS[name][0] for name, mean in steps[0].items())
        return [*steps, kept]

    together = run_ranks(4, rank_main, hosts=HOSTS)
    monkeypatch.setattr(bundles, "LITTLE", -1)
    apart = run_ranks(4, rank_main, hosts=HOSTS)
    assert_ranks_equal([*[steps[:3] for steps in together], *[steps[:3] for steps in apart]])
    owed = [torch.stack([steps[3]["w1"] for steps in ranks]).sum(0) for ranks in (together, apart)]
    torch.testing.assert_close(*owed, atol=1e-5, rtol=1e-5)


def test_a_hundred_biases_are_one_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    encode = NoCompression._encode
    monkeypatch.setattr(
        NoCompression, "_encode", lambda self, feed, *rest: (calls.append(feed.x.numel()), encode(self, feed, *rest))[1]
    )
    metas = [TensorMeta(name=f"b{number}", shape=(10,), dtype=torch.float32) for number in range(100)]
    metas.append(TensorMeta(name="w", shape=(50, 50), dtype=torch.float32))
    codec = with_defaults(TopK(ratio=0.1))
    assert isinstance(codec, SizePolicy)
    assert isinstance(choose(codec, metas[0]).codec, NoCompression)

    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(codec, transport, exchange="gather")
        reducer.register(metas)
        for meta in metas:
            reducer.ready(meta.name, torch.full(meta.shape, float(transport.rank)))
        assert all(torch.equal(reducer.wait(meta.name), torch.full(meta.shape, 0.5)) for meta in metas[:-1])
        assert len(reducer.statistics.tensors) == reducer.statistics.buckets[0].tensors == 101

    run_ranks(2, rank_main)
    assert calls == [1000, 1000]


@pytest.mark.parametrize("compressor", [TopK(ratio=0.1), NoCompression()], ids=repr)
def test_a_scale_of_zero_leaves_the_means_of_other_tensors_alone(compressor: Compressor) -> None:
    names = ("b1", "scalar", "b2", "w1")
    by_name = {meta.name: meta for meta in METAS}

    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(with_defaults(compressor), transport)
        reducer.register([by_name[name] for name in names])
        for name in names:
            reducer.ready(name, torch.ones(by_name[name].shape))
        assert not reducer.wait("b1", scale=0.0).any()
        for name in names[1:]:
            mean = reducer.wait(name, scale=2.0)
            assert bool((mean == 2.0).all()) or name == "w1"

    run_ranks(3, rank_main)
