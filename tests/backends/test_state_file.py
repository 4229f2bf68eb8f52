"""A state file is read as it was written, or refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from gradwire import PayloadError
from gradwire.backends.state_file import read_state, write_state
from hypothesis import given
from hypothesis import strategies as st

STATE: dict[str, Any] = {"step": 3, "name": "a", "residuals": {"w": torch.arange(5.0)}}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "rank.pt"
    write_state(path, STATE)
    return path


def test_what_was_written_is_read(written: Path) -> None:
    state = read_state(written)
    assert {key: state[key] for key in ("step", "name")} == {"step": 3, "name": "a"}
    assert state["residuals"]["w"].equal(STATE["residuals"]["w"])


@given(data=st.data())
def test_a_change_of_any_byte_is_refused(written: Path, data: st.DataObject) -> None:
    content = bytearray(written.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    changed = written.with_name("changed.pt")
    changed.write_bytes(content)
    with pytest.raises(PayloadError, match=r"changed\.pt"):
        read_state(changed)


@given(data=st.data())
def test_a_file_cut_short_or_too_long_is_refused(written: Path, data: st.DataObject) -> None:
    content = written.read_bytes()
    cut = written.with_name("cut.pt")
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(PayloadError):
        read_state(cut)
    cut.write_bytes(content + data.draw(st.binary(min_size=1, max_size=9)))
    with pytest.raises(PayloadError):
        read_state(cut)


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    write_state(tmp_path / "rank.pt", {"w": Hostile()})
    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        read_state(tmp_path / "rank.pt")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank.pt"
    write_state(path, {"step": 1})

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_state(path, {"step": 2})
    assert read_state(path) == {"step": 1}
