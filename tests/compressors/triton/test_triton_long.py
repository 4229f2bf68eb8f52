"""What only long tensors come to, in short ones: pieces, programs and tiles that are taken one after another."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest
import torch
from gradwire.compressors.kernels import Feed, indices_of, reference
from support.triton_cases import DEVICE, kernels, same, some_bytes, there, values


def part(name: str) -> ModuleType:
    return import_module(f"{kernels.__name__}.{name}")


def test_running_totals_go_on_from_tile_to_tile() -> None:
    counts = torch.arange(2 * 9001).view(2, 9001) % 7
    found = there(counts)
    part("prefix").accumulate(found)
    expected = counts.cumsum(1) - counts
    assert same(found, expected)


def test_programs_count_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part("select"), "_COUNTERS", 2)
    n, k = 20_000, 200
    x, residual = values("normal", n, 1), values("heavy", n, 2)
    payloads = some_bytes(indices_of(n, k).nbytes + 4 * k), there(some_bytes(indices_of(n, k).nbytes + 4 * k))
    rests = torch.empty(n), torch.empty(n, device=DEVICE)
    assert reference.top_k_encode(Feed(x, residual, 1.0, rests[0]), k, payloads[0])
    assert kernels.top_k_encode(Feed(there(x), there(residual), 1.0, rests[1]), k, payloads[1])
    assert same(payloads[1], payloads[0])
    assert same(rests[1], rests[0])


@pytest.mark.parametrize("exact", [True, False])
def test_chunks_are_counted_by_several_programs(exact: bool) -> None:
    n, k = 1_100_000, 12_000
    form = indices_of(n, k, exact)
    assert form.width == 8
    payload = some_bytes(form.nbytes + 4 * k)
    reference.top_k_encode(Feed(values("normal", n, 1)), k, payload, exact)
    out = values("normal", n, 2)
    added = there(out)
    reference.sparse_decode_add(payload, k, out, 0.5, exact)
    kernels.sparse_decode_add(there(payload), k, added, 0.5, exact)
    assert same(added, out)


@pytest.mark.parametrize("order", [1, 2])
def test_sums_of_many_pieces(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part("scales"), "PARTS", 2)
    n = 50_000
    x, payload = values("normal", n, 1), some_bytes(4 + (n + 7) // 8)
    mine = there(payload)
    reference.sign_encode(Feed(x), n, order, payload)
    kernels.sign_encode(Feed(there(x)), n, order, mine)
    assert same(mine[4:], payload[4:])
    assert abs(int(mine[:4].view(torch.int32)) - int(payload[:4].view(torch.int32))) <= 1


def test_magnitudes_of_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part("scales"), "PARTS", 2)
    monkeypatch.setattr(part("two_bit"), "PARTS", 2)
    n = 50_000
    x, payload = values("normal", n, 1), some_bytes(8 + n // 4)
    mine = there(payload)
    reference.two_bit_encode(Feed(x), n, payload)
    kernels.two_bit_encode(Feed(there(x)), n, mine)
    assert same(mine[8:], payload[8:])
    assert int((mine[:8].cpu().view(torch.int32) - payload[:8].view(torch.int32)).abs().max()) <= 1
