"""`gradwire bench codecs`: what it accepts, measures, verifies, shows and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gradwire import FP16, ConfigError, ErrorFeedback, Int4, Int8, OneBit, RandomK, TensorMeta, TopK, TwoBit
from gradwire.compressors.kernels import native
from gradwire.launch import bench_codecs, cli, codec_cases
from gradwire.launch.bench_codecs import measure
from gradwire.launch.bench_table import CODEC_COLUMNS, codec_cells, codecs
from gradwire.launch.codec_cases import CODECS, Case, cases, limit, verify
from gradwire.launch.runs import RunError

KEYS = {
    "codec",
    "op",
    "numel",
    "dtype",
    "device",
    "threads",
    "kernels",
    "ratio_to_memcpy",
    "ns_per_call",
    "wire_bytes",
    "limit_bytes",
}


META = TensorMeta(name="w", shape=(8000,), dtype=torch.float32)


@pytest.fixture(autouse=True)
def _little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_codecs, "WORK", 1)
    monkeypatch.setattr(bench_codecs, "FEWEST", 1)
    monkeypatch.setattr(bench_codecs, "BATCH", 1)


def case_of(codec: Any, numel: int = 5000, dtype: torch.dtype = torch.float32) -> Case:
    return next(case for case in cases(numel, dtype) if case.codec == codec)


def test_rows_are_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    arguments = [
        "bench",
        "codecs",
        "--numel",
        "1024",
        "3000",
        "--threads",
        "1",
        "2",
        f"--json={tmp_path / 'rows.json'}",
    ]
    assert cli.main(arguments) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 2 * 2 * 2 * len(CODECS)
    assert [row["threads"] for row in rows[:4]] == [1, 1, 2, 2]
    assert all(row.keys() == KEYS for row in rows)
    assert {row["op"] for row in rows} == {"encode", "decode_add"}
    assert all(row["ratio_to_memcpy"] > 0 and row["ns_per_call"] > 0 for row in rows)
    assert all(row["wire_bytes"] >= row["limit_bytes"] for row in rows if row["numel"] == 3000)
    assert "onebit" in capsys.readouterr().out
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("reference", [False, True])
def test_it_says_which_kernels_ran(reference: bool) -> None:
    options = cli.command_line().parse_args(["bench", "codecs", "--numel=100", *(["--reference"] if reference else [])])
    expected = "native" if native.available() and not reference else "reference"
    assert {row["kernels"] for row in bench_codecs.rows(options, lambda line: None)} == {expected}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_a_wrong_result_is_an_error(codec: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(codec, dtype=dtype)
    verify(case)
    decode = type(codec).decompress_add
    monkeypatch.setattr(type(codec), "decompress_add", lambda self, *args: decode(self, *args[:3], 1.1))
    with pytest.raises(RunError, match="5000 elements: decoded and left out miss the input"):
        verify(case)


def test_the_limit_is_what_must_be_said() -> None:
    numel = 25 << 20
    sparse = measure(case_of(ErrorFeedback(TopK(ratio=0.01)), 100_000), "decode_add", 1)
    assert 1.0 < sparse["wire_bytes"] / sparse["limit_bytes"] < 1.1
    for codec, nbytes in {
        OneBit(): 1000,
        RandomK(ratio=0.01): 320,
        Int8(block=256): 8000,
        Int4(block=256): 4000,
    }.items():
        assert limit(codec, META) == nbytes
    assert limit(FP16(), META) == 16_000
    places = codec_cases._entropy(8000, 80)
    assert limit(TopK(ratio=0.01), META) == places + 320
    assert limit(TopK(ratio=0.01, values=TwoBit()), META) == places + 20
    entropy = codec_cases._entropy(numel, numel // 100)
    assert entropy / (numel // 100) == pytest.approx(1.01, abs=0.005)


def test_the_table() -> None:
    row = {
        "codec": "onebit",
        "op": "encode",
        "numel": 1000,
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
        "kernels": "native",
        "ratio_to_memcpy": 2.512,
        "ns_per_call": 12_345.0,
        "wire_bytes": 129,
        "limit_bytes": 125.0,
    }
    other = row | {"op": "decode_add", "ratio_to_memcpy": 0.5, "ns_per_call": 2_345_000.0}
    cells = ["onebit", "1000", "1", "2.51", "0.50", "12.3 µs", "2.35 ms", "0.1290", "3.2 %"]
    assert codec_cells(row, other) == cells
    shown = codecs([row, other])
    assert (shown.row_count, len(shown.columns)) == (1, len(CODEC_COLUMNS))
    assert "native" in str(shown.title)


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--numel", "0"], "from 1 to"),
        (["--dtype", "fp64"], "fp32"),
        (["--threads", "0"], "from 1 to"),
        (["--device", "tpu"], "cpu"),
        (["--np=2"], ""),
    ],
)
def test_a_bad_value_is_refused_with_the_allowed_ones(
    arguments: list[str], allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.command_line().parse_args(["bench", "codecs", *arguments])
    assert allowed in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_none_is_measured() -> None:
    options = cli.command_line().parse_args(["bench", "codecs", "--device", "cuda"])
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        bench_codecs.rows(options, lambda line: None)
