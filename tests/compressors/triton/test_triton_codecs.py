"""Codecs over kernels that answer with tensors: the same payloads, states and results, and nobody waits."""

from __future__ import annotations

import pytest
import torch
from gradwire import FP16, Compressor, ErrorFeedback, OneBit, SizePolicy, State, TopK
from gradwire.compressors import kernels as offered
from gradwire.compressors.kernels import choose
from gradwire.compressors.momentum import MomentumCorrection
from support.compressing import RAW, REMEMBERING, context, make_values
from support.triton_cases import DEVICE, kernels

N = 3000
CODECS: list[Compressor] = [
    *RAW,
    *REMEMBERING,
    MomentumCorrection(TopK(ratio=0.1)),
    SizePolicy(ErrorFeedback(OneBit(block=8)), min_numel=16, min_ndim=0),
]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for CUDA tensors, wherever these are."""
    for name in kernels.__all__:
        monkeypatch.setattr(offered, name, getattr(kernels, name))


def steps(codec: Compressor, dtype: torch.dtype) -> list[tuple[torch.Tensor, State, torch.Tensor, object]]:
    """Payload, state, what is decoded, and the verdict, of three steps."""
    state, results = {}, []
    for step in range(3):
        x = make_values("normal", N, seed=step).to(DEVICE, dtype)
        done = codec.compress(x, state, context(x, step=step))
        state = done.state
        decoded = codec.decompress(done.payload, context(x, step=step), torch.empty(N, device=DEVICE))
        kept = {key: value.clone() for key, value in state.items()}
        results.append((done.payload.clone(), kept, decoded, done.finite))
    return results


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codecs_do_the_same_over_them(codec: Compressor, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    with offered.reference_only():
        expected = steps(codec, dtype)
    request.getfixturevalue("chosen")
    for ours, theirs in zip(steps(codec, dtype), expected, strict=True):
        assert torch.equal(torch.as_tensor(ours[3]).cpu(), torch.tensor(True))
        assert ours[1].keys() == theirs[1].keys()
        close(ours[0], theirs[0])
        close(ours[2], theirs[2])
        for key in ours[1]:
            close(ours[1][key], theirs[1][key])


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Scales may differ in their last place."""
    if ours.dtype == torch.uint8:
        assert (ours != theirs).float().mean() <= 0.02
    else:
        assert torch.allclose(ours.double(), theirs.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_what_is_not_finite_is_told_later(codec: Compressor) -> None:
    """`finite` is a tensor, the payload is poison, and the old state is as it was."""
    x = make_values("normal", N, seed=1).to(DEVICE)
    before = codec.compress(x, {}, context(x)).state
    kept = {key: value.clone() for key, value in before.items()}
    bad = x.clone()
    bad[7] = float("inf")
    done = codec.compress(bad, before, context(bad, step=1))
    assert isinstance(done.finite, torch.Tensor)
    assert done.finite.shape == ()
    assert not done.finite
    poison = done.payload.isnan() if done.payload.is_floating_point() else done.payload == 0
    assert poison.all()
    assert all(torch.equal(before[key], value) for key, value in kept.items())


@pytest.mark.usefixtures("chosen")
def test_saturated_values_are_counted_without_waiting() -> None:
    x = torch.tensor([1e6, 1.0, -1e6], device=DEVICE)
    state = FP16().compress(x, {}, context(x)).state
    assert int(FP16().compress(x, state, context(x)).state["saturated"]) == 4


def test_they_are_chosen_for_gpus() -> None:
    gpu = torch.device("cuda")
    assert choose.form_on(gpu) == "triton"
    assert choose._elsewhere(gpu, offered.reference.sign_pack) is kernels.sign_pack
    assert choose._elsewhere(gpu, offered.reference.sparse_merge) is offered.reference.sparse_merge
    assert choose.form_on(torch.device("xla")) == "reference"
    with offered.reference_only():
        assert choose.form_on(gpu) == "reference"
