"""The demo's table: sums and ratios from the records of a run."""

from __future__ import annotations

from pathlib import Path

from gradwire.launch.report import COLUMNS, Result, picture, row


def result(name: str = "topk", steps: int = 3, sent: int = 100) -> Result:
    records = [
        {
            "step": step,
            "loss": 5.0 - step,
            "step_seconds": 9.0 if step == 1 else 0.020,
            "codec_seconds": 1.0 + 0.005 * step,
            "wait_seconds": 2.0 + 0.003 * step,
            "sent_bytes": sent * step,
            "raw_bytes": 4000 * step,
            "fp16_bytes": 2000 * step,
        }
        for step in range(1, steps + 1)
    ]
    return Result(name=name, records=records, held_out_loss=1.25)


def test_a_row_shows_shares_of_a_step_without_the_first() -> None:
    assert row(result()) == ["topk", "3.000", "1.250", "100", "40.0x", "20.0x", "20", "12", "5", "3"]
    assert len(row(result())) == len(COLUMNS)


def test_a_run_that_sends_nothing_has_no_ratio() -> None:
    assert row(result(sent=0))[3:6] == ["0", "-", "-"]


def test_one_step_is_all_there_is_to_average() -> None:
    assert row(result(steps=1))[3:7] == ["100", "40.0x", "20.0x", "9000"]


def test_losses_are_smoothed_over_the_steps_so_far() -> None:
    assert result(steps=3).smooth_losses() == [4.0, 3.5, 3.0]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    picture([result("none", sent=4000), result("idle", sent=0)], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
