"""What calls of DeepSpeed's functions are about: stage 3 is compared with DeepSpeed's own code."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.comm import coalesced_collectives
from gradwire import UnsupportedError
from gradwire.backends import Part
from gradwire.deepspeed_comp.gradients.averaging import Bucketed, Partitioned
from hypothesis import given
from hypothesis import strategies as st
from support.flattened import assert_carried, named, numbered, shapes


def partitioned(gradients: list[torch.Tensor], world_size: int, **optimizer: Any) -> tuple[Partitioned, list[Any]]:
    parameters = [torch.nn.Parameter(torch.zeros(())) for _ in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.ds_shape = gradient.shape  # pyright: ignore[reportAttributeAccessIssue]
    names = [(f"p{number}", parameter) for number, parameter in enumerate(parameters)]
    prefix = "_DeepSpeedZeroOptimizer_Stage3__avg_scatter"
    options: dict[str, Any] = dict.fromkeys((f"{prefix}_grads", f"{prefix}_contiguous_grads"))
    options |= {"postscale_gradients": True, "gradient_predivide_factor": 1.0, "ipg_buckets": {}, **optimizer}
    if options["ipg_buckets"] is None:
        del options["ipg_buckets"]
    host = SimpleNamespace(
        optimizer=SimpleNamespace(**options), module=SimpleNamespace(named_parameters=lambda: iter(names))
    )
    return Partitioned(host, world_size), parameters


@given(shapes, st.integers(1, 5))
def test_runs_are_where_deepspeed_puts_them(shapes: list[tuple[int, ...]], world_size: int) -> None:
    gradients = [torch.atleast_1d(gradient) for gradient in numbered(named(shapes))]
    flats: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coalesced_collectives.dist, "get_rank", lambda group: 0)
        patch.setattr(coalesced_collectives.dist, "get_world_size", lambda group: world_size)
        patch.setattr(
            coalesced_collectives, "_torch_reduce_scatter_fn", lambda flat, *_, **__: flats.append(flat * world_size)
        )
        coalesced_collectives.reduce_scatter_coalesced([gradient.clone() for gradient in gradients])
    averaging, parameters = partitioned(gradients, world_size)
    carried = averaging._scattered(parameters)
    known = {f"p{number}": gradient for number, gradient in enumerate(gradients)}
    assert carried.numel == flats[0].numel()
    assert_carried(flats[0].round(), carried.parts, known, padded=True)
    assert sum(part.numel for part in carried.parts) == sum(gradient.numel() for gradient in gradients)
    assert carried.bounds is not None
    assert len(carried.bounds) == world_size + 1
    assert {high - low for low, high in pairwise(carried.bounds)} == {carried.numel // world_size}


def test_a_parameter_that_the_model_did_not_have_is_an_error() -> None:
    averaging, _ = partitioned([torch.zeros(3)], 2)
    with pytest.raises(UnsupportedError, match=r"of shape \(7,\) that the model did not have when compression was"):
        averaging._scattered([torch.nn.Parameter(torch.zeros(7))])


@pytest.mark.parametrize(
    ("buckets", "text"),
    [
        (
            {torch.float32: SimpleNamespace(parameters=[])},
            "lacks what gradwire needs: SimpleNamespace.params. Supported",
        ),
        (None, "lacks what gradwire needs: SimpleNamespace.params_in_ipg_bucket. Supported"),
    ],
)
def test_buckets_of_another_kind_are_an_error(buckets: Any, text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        partitioned([torch.zeros(3)], 2, ipg_buckets=buckets)


def test_buckets_of_releases_before_0_17_are_found() -> None:
    parameter, gradient = torch.nn.Parameter(torch.zeros(2, 3)), torch.arange(6.0)
    optimizer = SimpleNamespace(
        param_dict={7: parameter},
        grads_in_ipg_bucket=[gradient],
        params_in_ipg_bucket=[(0, parameter, 7)],
        contiguous_gradients=True,
        reduce_scatter=True,
        average_tensor=None,
        allreduce_bucket=None,
    )
    host = SimpleNamespace(
        optimizer=optimizer, module=SimpleNamespace(named_parameters=lambda: iter([("p", parameter)]))
    )
    averaging = Bucketed(host, 2)
    for find, argument in zip(averaging.methods.values(), (gradient, [gradient]), strict=True):
        assert find(argument) == ((Part("p", (2, 3), 0, 6),), 6, None)
