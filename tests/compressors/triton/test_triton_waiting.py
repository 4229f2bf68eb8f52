"""Kernels in Triton never wait for the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gradwire.compressors.kernels import E4M3, INT4, INT8, Coding, Feed, indices_of, levels_bytes, two_bit_bytes
from support.triton_cases import DEVICE, kernels, there, values

FOLDER = Path(kernels.__file__).parent
#: what waits for a tensor, or moves it
WAITING = {
    "bincount",
    "cpu",
    "cuda",
    "equal",
    "from_numpy",
    "item",
    "masked_select",
    "nonzero",
    "numpy",
    "repeat_interleave",
    "synchronize",
    "tensor",
    "tolist",
    "unique",
}
#: what they make of a tensor waits for it, and so does a branch
CONVERTING = {"bool", "complex", "int", "list", "tuple"}


def test_nothing_waits() -> None:
    for path in FOLDER.glob("*.py"):
        for name, line in suspects(ast.parse(path.read_text())):
            raise AssertionError(f"{path.name}, line {line}: {name} may wait for the device")


def suspects(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in WAITING:
            yield called.attr, node.lineno
        if isinstance(called, ast.Name) and called.id in CONVERTING:
            yield called.id, node.lineno
        if isinstance(called, ast.Name) and called.id == "float" and not isinstance(node.args[0], ast.Constant):
            yield called.id, node.lineno


def use_all(n: int) -> None:
    """Every kernel once."""
    x, residual = torch.randn(n, device=DEVICE), torch.randn(n, device=DEVICE)
    feed, out = Feed(x, residual, 0.9, torch.empty_like(x)), torch.zeros_like(x)
    half, k = torch.empty(n, dtype=torch.float16, device=DEVICE), max(1, n // 100)
    kernels.all_finite(x)
    kernels.copy(x, half)
    kernels.total(feed)
    kernels.cast_encode(feed, 2.0, half)
    kernels.cast_decode_add(half, out, 2.0)
    payload = torch.empty(8 * n + 4096, dtype=torch.uint8, device=DEVICE)
    for block in (256, 1 << 20):
        kernels.sign_encode(feed, block, 1, payload)
        kernels.sign_decode_add(payload, block, out, 0.5)
        kernels.two_bit_encode(feed, block, payload[: two_bit_bytes(n, block)])
        kernels.two_bit_decode_add(payload, block, out, 0.5)
        for grid, seed in ((INT8, 7), (INT4, None), (E4M3, None)):
            kernels.levels_encode(feed, grid, block, seed, payload[: levels_bytes(n, block, grid)])
            kernels.levels_decode_add(payload, grid, block, out, 0.5)
    kernels.sign_pack(x, payload)
    kernels.sign_unpack_add(payload, out[:1], n, out, 0.5)
    use_sparse(feed, k, payload, out)


def use_sparse(feed: Feed, k: int, payload: torch.Tensor, out: torch.Tensor) -> None:
    sent = torch.empty(k, device=DEVICE)
    for exact in (True, False):
        place = indices_of(feed.x.numel(), k, exact).nbytes
        kernels.top_k_encode(feed, k, payload[: place + 4 * k], exact)
        kernels.sparse_decode_add(payload[: place + 4 * k], k, out, 0.5, exact)
        for coding in (Coding(torch.float16), Coding(INT8, 256, 7), Coding(None, 256)):
            coded = payload[: place + coding.nbytes(k)]
            kernels.coded_encode(feed, k, coded, coding, exact)
            kernels.coded_decode_add(coded, k, coding, out, 0.5, exact)
        kernels.clear(payload, k, out, exact)
    kernels.draw(feed.x.numel(), k, 7, DEVICE)
    kernels.draw_encode(feed, k, 7, sent)
    kernels.draw_decode_add(sent, 7, True, out, 0.5)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="there is no GPU, or the interpreter runs")
@pytest.mark.parametrize("n", [1, 5000, 100_003])
def test_torch_does_not_see_anybody_wait(n: int) -> None:
    use_all(n)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        use_all(n)
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="there is no GPU, or the interpreter runs")
def test_launches_go_to_the_current_stream() -> None:
    """A stream that is kept busy first: the result is not there before its turn."""
    x, stream = there(values("normal", 5000, 1)), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        flat, _ = kernels.total(Feed(x, x))
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(flat, x + x)


def test_each_kernel_runs_once() -> None:
    use_all(1000)


def test_all_kernels_are_those_of_the_reference_but_a_few() -> None:
    """PyTorch's own fill is as good on a GPU as ours could be."""
    from gradwire.compressors.kernels import reference

    left_out = {"check_draw", "sparse_indices", "sparse_merge", "zero"}
    assert set(kernels.__all__) == set(reference.__all__) - left_out
