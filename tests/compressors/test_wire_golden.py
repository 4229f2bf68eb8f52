"""The examples of docs/wire-format.md, byte for byte. A change here is a new version of the format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gradwire import (
    BF16,
    FP8,
    FP16,
    Compressor,
    Context,
    Int4,
    Int8,
    NoCompression,
    OneBit,
    RandomK,
    TensorMeta,
    TopK,
    TwoBit,
)
from gradwire.compressors.wire import NON_FINITE, Expected, write_header
from support.compressing import as_bytes

PAGE = Path(__file__).parents[2] / "docs" / "wire-format.md"

FEW = torch.zeros(257).index_put((torch.tensor([0, 254, 255]),), torch.tensor([1.0, -1.0, 2.0]))
MANY = torch.zeros(65_540).index_put((torch.tensor([1, 65_535, 65_537]),), torch.tensor([1.0, -1.0, 2.0]))
PAIR = torch.tensor([1.0, -2.0])

EXAMPLES: list[tuple[str, Compressor, torch.Tensor, int]] = [
    ("0000803f 000000c0", NoCompression(), PAIR, 1),
    ("003c 00c0", FP16(), PAIR, 1),
    ("0034 00b8", FP16(), PAIR, 3),
    ("803f 00c0", BF16(), PAIR, 1),
    ("01 01 0000 00004040", TopK(), torch.tensor([0.0, 3.0, -1.0]), 1),
    ("02 01 00 fe 00 000000 0000803f 000080bf 00000040", TopK(ratio=0.011), FEW, 1),
    ("0100 0200 0100 0000 0200 0000 0000803f 000080bf 00000040", TopK(ratio=3 / 65_540), MANY, 1),
    ("01000100 00000040", TopK(ratio=1 / 65_540), MANY, 1),
    ("02 01 02 00 0042 00bc", TopK(ratio=0.5, values=FP16()), torch.tensor([0.0, 3.0, -1.0]), 1),
    ("02 01 02 00 00004040 000080bf", TopK(ratio=0.5, sampled=True), torch.tensor([0.0, 3.0, -1.0]), 1),
    ("02 01 02 00 0000803f 00004040 03", TopK(ratio=0.5, values="twobit"), torch.tensor([0.0, 3.0, -1.0]), 1),
    ("02 01 02 00 00000040 7f fe", TopK(ratio=0.5, values=Int8()), torch.tensor([0.0, 254.0, -4.0]), 1),
    ("0000803f 00004040 0000e040", RandomK(ratio=0.3), torch.arange(8.0), 4),
    ("0000803f 00000040 ff 06", OneBit(block=8), torch.tensor([1.0] * 8 + [-1.0, 0.0, 5.0]), 1),
    ("0000803f 00000040 7f ff 00 40 81", Int8(block=4), torch.tensor([127.0, -1.0, 0.0, 64.0, -254.0]), 1),
    ("0000803f 00000040 f7 40 09", Int4(block=4), torch.tensor([7.0, -1.0, 0.0, 4.0, -14.0]), 1),
    ("0000803f 00000040 7e b8 00 2a fe", FP8(block=4), torch.tensor([448.0, -1.0, 0.0, 0.3, -896.0]), 1),
    (
        "0000803f 00000040 7b bc 00 35 fb",
        FP8(format="e5m2", block=4),
        torch.tensor([57_344.0, -1.0, 0.0, 0.3, -114_688.0]),
        1,
    ),
    (
        "0000803f 00005040 00000000 00004040 f1 02",
        TwoBit(block=4),
        torch.tensor([1.0, -1.0, 2.5, 4.0, -3.0]),
        1,
    ),
]


@pytest.mark.parametrize(("golden", "codec", "x", "summands"), EXAMPLES)
def test_payload(golden: str, codec: Compressor, x: torch.Tensor, summands: int) -> None:
    meta = TensorMeta(name="w", shape=tuple(x.shape), dtype=x.dtype, summands=summands)
    payload = codec.compress(x, {}, Context(meta=meta)).payload
    assert as_bytes(payload) == bytes.fromhex(golden)
    assert f"`{golden}`" in PAGE.read_text()


def test_header() -> None:
    golden = "4757 02 04 0100 0300 efbeadde 07000000 1000000000000000"
    message = torch.zeros(40, dtype=torch.uint8)
    write_header(message, Expected(codec_id=4, count=3, digest=0xDEADBEEF), step=7, flags=NON_FINITE)
    assert as_bytes(message[:24]) == bytes.fromhex(golden)
    assert f"`{golden}`" in PAGE.read_text()


CODECS = [NoCompression(), FP16(), BF16(), TopK(), RandomK(), OneBit(), Int8(), Int4(), FP8(), TwoBit()]


@pytest.mark.parametrize("codec", CODECS)
def test_the_page_knows_every_codec_id(codec: Compressor) -> None:
    ids = {1: "1", 2: "2, 3", 3: "2, 3"}
    assert f"| {ids.get(codec.codec_id, codec.codec_id)} |" in PAGE.read_text()
