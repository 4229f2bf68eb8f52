"""Calls at the wrong time or with the wrong arguments are refused; the right ones do what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire import ConfigError, NoCompression, OneBit, RandomK, TopK, UsageError
from gradwire.backends import GradientReducer, LocalTransport, Transport, run_ranks
from support.reducing import (
    COMPRESSORS,
    SHAPES,
    assert_ranks_equal,
    assert_states_equal,
    bits,
    copy_states,
    exact_mean,
    gradient,
    ids,
    metas,
    one_step,
)

W = torch.ones(40, 37)


@pytest.fixture
def reducer() -> GradientReducer:
    """One rank alone, with two tensors registered."""
    reducer = GradientReducer(TopK(), LocalTransport.group(1)[0])
    reducer.register(metas({"w": (40, 37), "b": (37,)}))
    return reducer


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"exchange": "ring"},
            "exchange is 'ring', expected one of auto, all_reduce, gather, two_phase, sparse, hierarchical",
        ),
        ({"exchange": "gahter"}, "(did you mean 'gather'?)"),
        ({"exchange": "all_reduce"}, "use exchange='auto', or RandomK"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": -1.0}, "timeout is -1.0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"bucket_bytes": 0}, "bucket_bytes is 0"),
        ({"bucket_bytes": True}, "bucket_bytes is True"),
        ({"bucket_bytes": 1.5}, "bucket_bytes is 1.5"),
    ],
    ids=str,
)
@pytest.mark.parametrize("world_size", [1, 2])
def test_impossible_options_are_refused_at_construction(world_size: int, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GradientReducer(TopK(), LocalTransport.group(world_size)[0], **options)
    assert text in str(caught.value)


@pytest.mark.parametrize("compressor", ["topk", None, TopK])
def test_what_is_no_compressor_is_refused_at_construction(compressor: Any) -> None:
    with pytest.raises(ConfigError, match=r"the compressor is .*, expected one such as TopK"):
        GradientReducer(compressor, LocalTransport.group(1)[0])


@pytest.mark.parametrize("compressor", [NoCompression(), RandomK(ratio=0.1)], ids=ids)
def test_all_reduce_takes_what_can_be_added(compressor: Any) -> None:
    GradientReducer(compressor, LocalTransport.group(2)[0], exchange="all_reduce")


def test_ready_twice(reducer: GradientReducer) -> None:
    reducer.ready("w", W)
    with pytest.raises(UsageError, match="'w' is ready already"):
        reducer.ready("w", W)
    assert bits(reducer.wait("w")) == bits(W)


def test_ready_of_an_unknown_name(reducer: GradientReducer) -> None:
    with pytest.raises(UsageError, match="'v' is not registered"):
        reducer.ready("v", W)
    assert not reducer.in_step


@pytest.mark.parametrize("grad", [torch.ones(37, 40), torch.ones(40, 37, dtype=torch.float64)], ids=["shape", "dtype"])
def test_a_gradient_that_does_not_fit(reducer: GradientReducer, grad: torch.Tensor) -> None:
    with pytest.raises(UsageError, match=r"registered as \(40, 37\) torch.float32"):
        reducer.ready("w", grad)
    assert not reducer.in_step


def test_wait_without_ready(reducer: GradientReducer) -> None:
    with pytest.raises(UsageError, match="no mean of 'w'"):
        reducer.wait("w")


def test_wait_twice(reducer: GradientReducer) -> None:
    reducer.ready("w", W)
    reducer.wait("w")
    with pytest.raises(UsageError, match="once per step"):
        reducer.wait("w")
    assert not reducer.wait("b").any()
    assert reducer.step == 1


def test_wait_for_an_unknown_name(reducer: GradientReducer) -> None:
    reducer.ready("w", W)
    with pytest.raises(UsageError, match="no mean of 'v'"):
        reducer.wait("v")
    assert bits(reducer.wait("w")) == bits(W)


def test_means_of_a_step_are_gone_when_the_next_one_begins(reducer: GradientReducer) -> None:
    reducer.ready("w", W)
    reducer.wait("w")
    reducer.ready("w", 2 * W)
    assert reducer.in_step
    assert not reducer.wait("b").any()
    assert bits(reducer.wait("w")) == bits(2 * W)
    assert reducer.step == 2


def test_register_during_a_step(reducer: GradientReducer) -> None:
    reducer.ready("w", W)
    with pytest.raises(UsageError, match="between steps"):
        reducer.register(metas({"v": (3,)}))
    reducer.abandon()
    reducer.register(metas({"v": (3,)}))
    assert reducer.names == {"w", "b", "v"}


@pytest.mark.parametrize(
    ("names", "groups", "text"),
    [
        (["x", "x"], [], "'x' is registered or grouped twice"),
        (["w"], [], "'w' is registered or grouped twice"),
        (["x", "y"], [["x"], ["y", "x"]], "'x' is registered or grouped twice"),
        (["x", "y"], [["x", "x"]], "'x' is registered or grouped twice"),
        (["x"], [["x", "z"]], "names 'z', which is not"),
        (["x"], [["w"]], "names 'w', which is not"),
    ],
)
def test_names_that_clash(reducer: GradientReducer, names: list[str], groups: list[list[str]], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        reducer.register([meta for name in names for meta in metas({name: (3,)})], groups)
    assert reducer.names == {"w", "b"}


def test_groups_never_share_a_bucket() -> None:
    groups = [["w1", "scalar"], [], ["b1"]]

    def rank_main(transport: Transport) -> list[dict[str, torch.Tensor]]:
        grouped = GradientReducer(NoCompression(), transport, name="grouped")
        grouped.register(metas(SHAPES), groups)
        assert len(grouped.statistics.buckets) == 3
        plain = GradientReducer(NoCompression(), transport, name="plain")
        plain.register(metas(SHAPES))
        assert len(plain.statistics.buckets) == 1
        return [one_step(grouped, SHAPES, 0), one_step(plain, SHAPES, 0)]

    ranks = run_ranks(2, rank_main)
    assert_ranks_equal([ranks[0][:1], ranks[0][1:]])


@pytest.mark.parametrize("compressor", [NoCompression(), TopK(ratio=0.1), RandomK(ratio=0.1), OneBit()], ids=ids)
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_tensor_has_its_own_scale(compressor: Any, world_size: int) -> None:
    """The world size gives the sum; tensors of one bucket may differ, and so may steps."""
    scales = {name: (1.0, float(world_size), 0.25)[number % 3] for number, name in enumerate(SHAPES)}

    def rank_main(transport: Transport) -> None:
        plain = GradientReducer(compressor, transport, name="plain")
        scaled = GradientReducer(compressor, transport, name="scaled")
        for reducer in (plain, scaled):
            reducer.register(metas(SHAPES))
        for step in range(2):
            means = one_step(plain, SHAPES, step)
            for name, shape in SHAPES.items():
                scaled.ready(name, gradient(name, shape, transport.rank, step), donate=step == 1)
            for name, scale in scales.items():
                torch.testing.assert_close(scaled.wait(name, scale), means[name] * scale, rtol=1e-5, atol=1e-6)
        assert_states_equal(copy_states(scaled), copy_states(plain))

    run_ranks(world_size, rank_main)


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=ids)
def test_an_abandoned_step_never_happened(compressor: Any, donate: bool) -> None:
    def rank_main(transport: Transport) -> list[dict[str, torch.Tensor]]:
        clean = GradientReducer(compressor, transport, name="clean")
        other = GradientReducer(compressor, transport, name="other", bucket_bytes=3000)
        for reducer in (clean, other):
            reducer.register(metas(SHAPES))
        means = [one_step(clean, SHAPES, step) for step in range(2)]
        means.append(one_step(other, SHAPES, 0))
        for name in ("w2", "b1"):
            other.ready(name, gradient(name, SHAPES[name], transport.rank, 77), donate=donate)
        assert other.in_step
        other.abandon()
        other.abandon()
        assert not other.in_step
        means.append(one_step(other, SHAPES, 1))
        assert other.statistics.steps == 2
        assert_states_equal(copy_states(other), copy_states(clean))
        return means

    for means in run_ranks(2, rank_main):
        assert_ranks_equal([means[:2], means[2:]])


def test_gradients_with_a_graph_give_means_without_one() -> None:
    """As backward(create_graph=True) makes them."""

    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(NoCompression(), transport)
        reducer.register(metas({"w": (40, 37)}))
        for donate in (False, True):
            reducer.ready("w", torch.full((40, 37), float(transport.rank), requires_grad=True), donate=donate)
            mean = reducer.wait("w", scale=2.0)
            assert not mean.requires_grad
            assert bits(mean) == bits(W)

    run_ranks(2, rank_main)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_gradient_that_is_not_donated_stays_as_it_is(world_size: int) -> None:
    def rank_main(transport: Transport) -> None:
        reducer = GradientReducer(TopK(ratio=0.1), transport)
        reducer.register(metas(SHAPES))
        for step in range(2):
            grads = {name: gradient(name, shape, transport.rank, step) for name, shape in SHAPES.items()}
            before = {name: bits(grad) for name, grad in grads.items()}
            for name, grad in grads.items():
                reducer.ready(name, grad)
            for name in SHAPES:
                reducer.wait(name, scale=3.0).zero_()
            assert {name: bits(grad) for name, grad in grads.items()} == before

    run_ranks(world_size, rank_main)


LAYOUTS = {
    "transposed": lambda grad: grad.transpose(1, 2).contiguous().transpose(1, 2),
    "strided": lambda grad: torch.stack([grad, grad], dim=-1)[..., 0],
    "channels last": lambda grad: grad[None].contiguous(memory_format=torch.channels_last)[0],
    "expanded": lambda grad: grad[:, :1, :1].expand(grad.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_strides_do_not_matter(world_size: int, layout: str) -> None:
    """Same result as for the contiguous copy; the mean is writable."""
    shape = (8, 16, 16)

    def rank_main(transport: Transport) -> None:
        for number, compressor in enumerate((NoCompression(), TopK(ratio=0.1), RandomK(ratio=0.1), OneBit())):
            contiguous, strided = (
                GradientReducer(compressor, transport, name=f"{name}{number}", exchange="auto") for name in "cs"
            )
            for donate in (False, True):
                grad = LAYOUTS[layout](gradient("w", shape, transport.rank, 0))
                means = []
                for reducer, given in (
                    (contiguous, grad.clone(memory_format=torch.contiguous_format)),
                    (strided, grad),
                ):
                    if not reducer.names:
                        reducer.register(metas({"w": shape}))
                    reducer.ready("w", given, donate=donate)
                    means.append(reducer.wait("w"))
                assert bits(means[0]) == bits(means[1])
                assert means[1].add_(1).shape == shape

    run_ranks(world_size, rank_main)


def test_two_reducers_with_equal_tensor_names_do_not_mix() -> None:
    def rank_main(transport: Transport) -> None:
        one, two = (GradientReducer(NoCompression(), transport, name=name) for name in ("one", "two"))
        for reducer in (one, two):
            reducer.register(metas({"w": (4, 4)}))
        for first, second in ((one, two), (two, one)) if transport.rank else ((one, two), (one, two)):
            first.ready("w", gradient("w", (4, 4), transport.rank, 1 if first is one else 2))
            second.ready("w", gradient("w", (4, 4), transport.rank, 1 if second is one else 2))
            for reducer, step in ((one, 1), (two, 2)):
                torch.testing.assert_close(reducer.wait("w").double(), exact_mean("w", (4, 4), 2, step))

    run_ranks(2, rank_main, ordered=False)
