"""The files beside DeepSpeed's checkpoints, with a stand-in for the engine and ranks as threads."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gradwire import ConfigError, PayloadError, PeerError
from gradwire.backends import Transport, run_ranks
from gradwire.deepspeed_comp.checkpoint import Checkpoints


class Engine:
    """Saves one file and a pointer to it, as DeepSpeed does."""

    global_steps = 7
    device = torch.device("cpu")

    def __init__(self, ranks: Transport) -> None:
        self.ranks = ranks

    def save_checkpoint(self, save_dir: str, tag: str | None = None, save_latest: bool = True) -> bool:
        tag = tag or f"global_step{self.global_steps}"
        self.ranks.barrier("save", 30)
        if self.ranks.rank == 0:
            (Path(save_dir) / tag / "model.pt").write_text("model")
            (Path(save_dir) / "latest").write_text(tag)
        self.ranks.barrier("saved", 30)
        return save_latest

    def load_checkpoint(
        self, load_dir: str, tag: str | None = None, load_optimizer_states: bool = True, load_module_only: bool = False
    ) -> tuple[str | None, dict[str, Any]]:
        latest = Path(load_dir) / "latest"
        found = tag or (latest.read_text() if latest.exists() else None)
        return (None if found is None else f"{load_dir}/{found}/model.pt"), {"client": 1}


class Residual:
    """A part that keeps one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def rank_state(self) -> dict[str, Any]:
        return {"residual": torch.tensor(self.value)}

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        self.value = float(state["residual"])

    def forget_rank_state(self) -> None:
        self.value = 0.0

    def merge_rank_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"residual": torch.stack([state["residual"] for state in states]).mean()}


def prepared(ranks: Transport, value: float, name: str = "optimizer") -> tuple[Engine, Residual]:
    engine, part = Engine(ranks), Residual(value)
    Checkpoints(engine, ranks).parts[name] = part
    return engine, part


def saved(folder: Path, world_size: int = 2) -> None:
    def rank_main(ranks: Transport) -> None:
        engine, _ = prepared(ranks, 10.0 + ranks.rank)
        assert engine.save_checkpoint(str(folder)) is True

    run_ranks(world_size, rank_main)


def loaded(folder: Path, world_size: int, **options: Any) -> list[float]:
    def rank_main(ranks: Transport) -> float:
        engine, part = prepared(ranks, 0.0 if options else 5.0)
        path, client = engine.load_checkpoint(str(folder), **options)
        assert (path, client) == (f"{folder}/global_step7/model.pt", {"client": 1})
        return part.value

    return run_ranks(world_size, rank_main)


def test_every_rank_gets_back_its_own(tmp_path: Path) -> None:
    saved(tmp_path)
    names = sorted(path.name for path in (tmp_path / "global_step7").iterdir())
    assert names == ["gradwire_rank_00000.pt", "gradwire_rank_00001.pt", "model.pt"]
    assert loaded(tmp_path, 2) == [10.0, 11.0]
    assert loaded(tmp_path, 2, tag="global_step7") == [10.0, 11.0]


@pytest.mark.parametrize("world_size", [1, 3])
def test_another_number_of_ranks_gets_what_is_merged(
    tmp_path: Path, world_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gradwire")
    saved(tmp_path)
    assert loaded(tmp_path, world_size) == [10.5] * world_size
    assert caplog.text.count(f"of 2 ranks, this job has {world_size}") == 1


def test_a_checkpoint_of_the_model_alone_moves_nothing(tmp_path: Path) -> None:
    saved(tmp_path)
    assert loaded(tmp_path, 2, load_module_only=True) == [0.0, 0.0]
    assert loaded(tmp_path, 2, load_optimizer_states=False) == [0.0, 0.0]


def test_an_older_checkpoint_loads_and_one_line_says_what_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gradwire")
    saved(tmp_path)
    for path in (tmp_path / "global_step7").glob("gradwire*"):
        path.unlink()
    assert loaded(tmp_path, 2) == [0.0, 0.0]
    assert caplog.text.count("holds no residuals") == 1


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    def rank_main(ranks: Transport) -> None:
        engine, _ = prepared(ranks, 0.0)
        assert engine.load_checkpoint(str(tmp_path))[0] is None

    run_ranks(2, rank_main)


def outcome(action: Callable[[], object]) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    return None


def outcomes(folder: Path, world_size: int, name: str = "optimizer") -> list[Exception | None]:
    def rank_main(ranks: Transport) -> Exception | None:
        engine, part = prepared(ranks, 0.0, name)
        error = outcome(lambda: engine.load_checkpoint(str(folder)))
        assert part.value == 0.0 or error is None or isinstance(error, PeerError)
        return error

    return run_ranks(world_size, rank_main)


def test_damage_on_one_rank_is_an_error_on_all(tmp_path: Path) -> None:
    saved(tmp_path)
    file = tmp_path / "global_step7" / "gradwire_rank_00001.pt"
    file.write_bytes(file.read_bytes()[:-1])
    peer, own = outcomes(tmp_path, 2)
    assert isinstance(own, PayloadError)
    assert isinstance(peer, PeerError)
    assert re.search("rank 1 could not restore", str(peer))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_missing_file_is_named(tmp_path: Path, world_size: int) -> None:
    saved(tmp_path, 3)
    (tmp_path / "global_step7" / "gradwire_rank_00001.pt").unlink()
    errors = outcomes(tmp_path, world_size)
    assert all(isinstance(error, ConfigError | PeerError) for error in errors)
    named = [error for error in errors if "holds 2 files gradwire_rank_*.pt, written by 3 ranks" in str(error)]
    assert len(named) == (1 if world_size == 3 else world_size)


def test_other_parts_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    for error in outcomes(tmp_path, 2, "gradients"):
        assert isinstance(error, ConfigError)
        assert "['optimizer'], this job keeps ['gradients']" in str(error)


def test_a_rank_that_cannot_write_stops_all(tmp_path: Path) -> None:
    (tmp_path / "global_step7" / "gradwire_rank_00001.pt.unfinished").mkdir(parents=True)

    def rank_main(ranks: Transport) -> Exception | None:
        engine, _ = prepared(ranks, 1.0)
        return outcome(lambda: engine.save_checkpoint(str(tmp_path)))

    peer, own = run_ranks(2, rank_main)
    assert isinstance(own, OSError)
    assert isinstance(peer, PeerError)
    assert not (tmp_path / "latest").exists()


def test_a_tag_written_again_by_fewer_ranks_holds_their_files_only(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    saved(tmp_path, 2)
    assert loaded(tmp_path, 2) == [10.0, 11.0]
    assert loaded(tmp_path, 3) == [10.5] * 3


def test_a_node_needs_the_files_of_its_own_ranks_only(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "global_step7" / "gradwire_rank_00000.pt").unlink()

    def rank_main(ranks: Transport) -> float:
        folder = tmp_path
        if ranks.rank == 0:
            folder = tmp_path / "other node"
            (folder / "global_step7").mkdir(parents=True)
            (folder / "latest").write_text("global_step7")
        engine, part = prepared(ranks, 20.0 + ranks.rank)
        engine.save_checkpoint(str(folder))
        part.value = 0.0
        engine.load_checkpoint(str(folder))
        return part.value

    assert run_ranks(2, rank_main) == [20.0, 21.0]


def test_what_an_older_checkpoint_of_the_same_tag_left_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "gradwire")
    saved(tmp_path)
    monkeypatch.setattr(Engine, "global_steps", 8)
    assert loaded(tmp_path, 2, tag="global_step7") == [0.0, 0.0]
    assert caplog.text.count("are of step 7, the checkpoint itself is of step 8") == 1
