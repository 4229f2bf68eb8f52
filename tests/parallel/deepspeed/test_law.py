"""Parameters, minus what is still owed of their gradients, follow the uncompressed run: by name, at every stage.

This fails if an element is taken for another one's, lost or padded, if a sum is scaled wrongly, or if a residual is
in other units than the gradients.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradwire import BF16, FP16, Compressor, Int8, NoCompression, OneBit, RandomK, TopK, TwoBit, UnsupportedError
from gradwire.deepspeed_comp._host import VERSION
from support.zero import Terms, assert_ranks_equal, config, exact, initialize, owed, parameters, train

from .conftest import Attach

STEPS = 3
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
#: stage, of zero_optimization, at the top of ds.json
PATHS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "0": (0, {}, {}),
    "0 prescaled": (0, {}, {"prescale_gradients": True}),
    "0 predivided": (0, {}, {"gradient_predivide_factor": 8.0}),
    "1": (1, {}, {}),
    "1 buckets smaller than a gradient": (1, {"reduce_bucket_size": 1000}, {}),
    "1 overlapping": (1, {"overlap_comm": True}, {}),
    "1 not contiguous": (1, {"contiguous_gradients": False}, {}),
    "1 owner by owner": (1, {"use_multi_rank_bucket_allreduce": False}, {}),
    "1 without reduce_scatter": (1, {"reduce_scatter": False}, {}),
    "1 offloaded": (1, OFFLOAD, {}),
    "1 prescaled": (1, {"reduce_scatter": False}, {"prescale_gradients": True}),
    "2": (2, {}, {}),
    "2 one bucket": (2, {"reduce_bucket_size": 1 << 20}, {}),
    "2 overlapping": (2, {"overlap_comm": True, "reduce_bucket_size": 1000}, {}),
    "2 not contiguous": (2, {"contiguous_gradients": False}, {}),
    "2 round robin": (2, {"round_robin_gradients": True}, {}),
    "2 owner by owner": (2, {"use_multi_rank_bucket_allreduce": False}, {}),
    "2 without reduce_scatter": (2, {"reduce_scatter": False, "overlap_comm": True}, {}),
    "2 offloaded": (2, OFFLOAD, {}),
    "2 predivided": (2, {"reduce_scatter": False}, {"gradient_predivide_factor": 8.0}),
    "3": (3, {}, {}),
    "3 one bucket": (3, {"reduce_bucket_size": 1 << 20}, {}),
    "3 overlapping": (3, {"overlap_comm": True}, {}),
    "3 not contiguous": (3, {"contiguous_gradients": False}, {}),
    "3 without reduce_scatter": (3, {"reduce_scatter": False}, {}),
    "3 predivided": (3, {"reduce_scatter": False}, {"gradient_predivide_factor": 8.0}),
    "3 offloaded": (3, {"offload_param": {"device": "cpu"}, **OFFLOAD}, {}),
}
#: until 0.19.7 it looked for gradients on a CPU by a name that their type has on a GPU only, and found none
NOT_CONTIGUOUS = [path for path in PATHS if path.endswith("not contiguous") and PATHS[path][0] < 3]
DROPS_GRADIENTS = pytest.mark.right_since("0.19.8", "gradients that are not contiguous are never averaged on a CPU")
CODECS = [
    TopK(ratio=0.05),
    RandomK(ratio=0.1),
    OneBit(),
    Int8(),
    TwoBit(),
    FP16(error_feedback=True),
    BF16(error_feedback=True),
    NoCompression(),
]
OFFLOADS_WRONGLY = pytest.mark.right_since("0.19.8", "at stage 1, offloaded fp32 sums lose gradients")
BF16_BLOCK = {"bf16": {"enabled": True}}
ACCUMULATING = {**BF16_BLOCK, "data_types": {"grad_accum_dtype": "fp32"}}


def assert_law(
    settings: dict[str, Any], compressor: Compressor, compress: Attach, *, tolerance: float = 1e-5
) -> dict[str, torch.Tensor]:
    """Train, and compare; what is owed in the end, by name."""
    accumulation = settings["gradient_accumulation_steps"]
    expected = exact(Terms(), STEPS, accumulation)
    engine = initialize(Terms(), settings)
    attachment = compress(engine, compressor)
    for step in range(STEPS):
        train(engine, 1, first=step)
        assert_ranks_equal(engine)
    debts = {name: owed(attachment, name) for name in expected}
    for name, parameter in parameters(engine).items():
        torch.testing.assert_close(parameter.double() - debts[name], expected[name], rtol=0, atol=tolerance)
    return debts


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=DROPS_GRADIENTS if path in NOT_CONTIGUOUS else ()) for path in PATHS]
)
def test_at_every_stage_and_option(path: str, accumulation: int, compress: Attach) -> None:
    stage, zero, top = PATHS[path]
    compressor = OneBit() if accumulation == 1 else TopK(ratio=0.05)
    debts = assert_law(config(stage, accumulation=accumulation, zero=zero, **top), compressor, compress)
    assert all(debts[f"terms.{index}.weight"].abs().max() > 0.1 for index in (0, 2))


@pytest.mark.parametrize("path", NOT_CONTIGUOUS)
def test_gradients_that_deepspeed_drops_are_an_error(path: str, compress: Attach) -> None:
    """Never silently uncompressed, and never silently not averaged at all."""
    stage, zero, _ = PATHS[path]
    engine = initialize(Terms(), config(stage, zero=zero))
    compress(engine, OneBit())
    if VERSION >= (0, 19, 8):
        train(engine, 1)
    else:
        with pytest.raises(UnsupportedError, match="nothing was compressed"):
            train(engine, 1)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_for_every_codec(codec: Compressor, stage: int, compress: Attach) -> None:
    debts = assert_law(config(stage), codec, compress)
    assert isinstance(codec, NoCompression) or bool(debts["terms.0.weight"].count_nonzero())


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("codec", [FP16(), BF16()], ids=repr)
def test_casts_owe_nothing(codec: FP16 | BF16, stage: int, compress: Attach) -> None:
    debts = assert_law(config(stage), codec, compress, tolerance=4 * torch.finfo(codec.dtype).eps)
    assert not any(debt.any() for debt in debts.values())


@pytest.mark.parametrize(("accumulation", "zero"), [(1, {}), (4, OFFLOAD)], ids=["", "offloaded"])
@pytest.mark.parametrize("stage", range(4))
def test_in_bf16(stage: int, zero: dict[str, Any], accumulation: int, compress: Attach) -> None:
    settings = config(stage, accumulation=accumulation, zero=zero if stage else {}, **BF16_BLOCK)
    assert_law(settings, TopK(ratio=0.05), compress, tolerance=0.04)


@pytest.mark.parametrize(
    ("wire", "zero"),
    [(None, {}), ("fp32", {}), pytest.param("fp32", OFFLOAD, marks=OFFLOADS_WRONGLY)],
    ids=["", "fp32", "offloaded"],
)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_in_bf16_with_gradients_added_up_in_fp32(
    stage: int, wire: str | None, zero: dict[str, Any], compress: Attach
) -> None:
    settings = config(stage, accumulation=4, zero=zero, communication_data_type=wire, **ACCUMULATING)
    assert_law(settings, TopK(ratio=0.05), compress, tolerance=0.04)
