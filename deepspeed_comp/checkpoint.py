"""What DeepSpeed's own checkpoints do not hold: the state of every rank, in a file per rank beside DeepSpeed's.

`engine.save_checkpoint` and `engine.load_checkpoint` are wrapped on the one engine that has something to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import torch

from .._version import __version__
from ..backends import TorchTransport, Transport
from ..backends.announce import announce
from ..backends.state_file import read_state, write_state
from ..compressors.errors import ConfigError, PeerError
from ._host import TIMEOUT

__all__ = ["Checkpoints", "Part", "RankState", "follow", "unfollow"]

RankState = dict[str, Any]

PATTERN = "gradwire_rank_*.pt"


class Part(Protocol):
    """Something with a state on every rank that DeepSpeed does not save."""

    def rank_state(self) -> RankState:
        """Plain values and tensors."""
        ...

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `rank_state` gave on this rank, or `merge_rank_states` on every rank."""
        ...

    def forget_rank_state(self) -> None:
        """Begin anew; after DeepSpeed has loaded a checkpoint without such a state, on every rank."""
        ...

    def merge_rank_states(self, states: Sequence[Mapping[str, Any]]) -> RankState:
        """One state for any number of ranks, from those of all ranks."""
        ...


def follow(engine: Any, name: str, part: Part) -> None:
    """Save and load `part` with the engine's checkpoints from now on, under a name of its own."""
    checkpoints = vars(engine).get(_ATTRIBUTE)
    if checkpoints is None:
        checkpoints = Checkpoints(engine, TorchTransport())
        setattr(engine, _ATTRIBUTE, checkpoints)
    checkpoints.parts[name] = part


def unfollow(engine: Any, name: str) -> None:
    """Leave a part out of the engine's checkpoints again."""
    vars(engine)[_ATTRIBUTE].parts.pop(name)


_ATTRIBUTE = "_gradwire_checkpoints"


class Checkpoints:
    """Wraps the two methods of one engine.

    Args:
        engine: of DeepSpeed.
        ranks: all of the job.

    Attributes:
        parts: what is saved, by name; the same names on all ranks.
    """

    def __init__(self, engine: Any, ranks: Transport) -> None:
        self.parts: dict[str, Part] = {}
        self._engine = engine
        self._ranks = ranks
        engine.save_checkpoint = self._saving(engine.save_checkpoint)
        engine.load_checkpoint = self._loading(engine.load_checkpoint)

    def _saving(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            arguments = signature(method).bind(*args, **kwargs).arguments
            if arguments["save_dir"] and self.parts:
                tag = arguments.get("tag")
                tag = f"global_step{self._engine.global_steps}" if tag is None else tag
                # before DeepSpeed's files: a checkpoint that `latest` names is complete
                self.save(Path(arguments["save_dir"]) / str(tag))
            return method(*args, **kwargs)

        return save_checkpoint

    def _loading(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def load_checkpoint(*args: Any, **kwargs: Any) -> Any:
            arguments = signature(method).bind(*args, **kwargs).arguments
            tag = arguments.get("tag")
            folder = Path(arguments["load_dir"])
            latest = folder / "latest"
            if tag is None and latest.is_file():
                tag = latest.read_text().strip()
            result = method(*args, **kwargs)
            model_only = arguments.get("load_module_only") or not arguments.get("load_optimizer_states", True)
            if result[0] is not None and self.parts and not model_only:
                self.load(folder / str(tag))
            return result

        return load_checkpoint

    def save(self, folder: Path) -> None:
        """Write this rank's file; a collective operation.

        Raises:
            OSError: this rank could not write.
            PeerError: another rank could not.
        """
        with self._together(f"could not write its state to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            if self._ranks.rank == 0:
                _remove_beyond(folder, self._ranks.world_size)
            write_state(
                self._own_file(folder),
                {
                    "gradwire": __version__,
                    "rank": self._ranks.rank,
                    "world_size": self._ranks.world_size,
                    "global_steps": self._engine.global_steps,
                    "parts": {name: part.rank_state() for name, part in self.parts.items()},
                },
            )

    def load(self, folder: Path) -> None:
        """Restore all parts from the files in a folder; a collective operation.

        Files of another number of ranks are merged. Where there is none, or another job has written its checkpoint
        over that of theirs, parts begin anew, and one line says so.

        Raises:
            PayloadError, ConfigError: the files are damaged or incomplete, or do not fit.
            PeerError: another rank could not restore its parts.
        """
        with self._together(f"could not restore its state from {folder}"):
            for part in self.parts.values():
                part.forget_rank_state()
            files = sorted(folder.glob(PATTERN))
            line = self._restore(files) if files else f"{folder} holds no residuals: error feedback begins at zero"
        if line and self._ranks.rank == 0:
            announce(line)

    def _restore(self, files: Sequence[Path]) -> str | None:
        """Load all parts; the line to announce, if any."""
        own_file = self._own_file(files[0].parent)
        own = self._read(own_file if own_file in files else files[0])
        made, now = own["world_size"], self._ranks.world_size
        if own["global_steps"] != self._engine.global_steps:
            return (
                f"residuals in {files[0].parent} are of step {own['global_steps']}, the checkpoint itself is of step "
                f"{self._engine.global_steps} and was written without them: error feedback begins at zero"
            )
        if made == now and own_file in files:
            self._load_parts(own["parts"])  # files of other ranks may be on other nodes
            return None
        if len(files) != made:
            raise ConfigError(
                f"{files[0].parent} holds {len(files)} files {PATTERN}, written by {made} ranks: "
                "copy those of all ranks into one folder"
            )
        states = [self._read(file)["parts"] for file in files]
        self._load_parts(
            {
                name: part.merge_rank_states([state[name] for state in states])
                for name, part in self.parts.items()
                if name in own["parts"]
            }
        )
        return f"the checkpoint is of {made} ranks, this job has {now}: every rank goes on from their mean residuals"

    def _own_file(self, folder: Path) -> Path:
        return folder / PATTERN.replace("*", f"{self._ranks.rank:05d}")

    def _read(self, file: Path) -> RankState:
        state = read_state(file, self._engine.device)
        if not (isinstance(state, dict) and {"rank", "world_size", "global_steps", "parts"} <= state.keys()):
            raise ConfigError(f"{file} holds another kind of state, not that of a rank of DeepSpeed")
        return state

    def _load_parts(self, states: Mapping[str, RankState]) -> None:
        if states.keys() != self.parts.keys():
            raise ConfigError(
                f"the checkpoint holds states of {sorted(states)}, this job keeps {sorted(self.parts)}: use the same "
                "optimizer and the same gradient_compression, or load_optimizer_states=False"
            )
        for name, part in self.parts.items():
            part.load_rank_state(states[name])

    @contextmanager
    def _together(self, failure: str) -> Iterator[None]:
        """What fails on one rank fails on all."""
        failed: Exception | None = None
        try:
            yield
        except Exception as error:
            failed = error
        flags = torch.zeros(self._ranks.world_size, dtype=torch.int32, device=self._engine.device)
        flags[self._ranks.rank] = failed is not None
        flags = self._ranks.all_reduce(flags, "gradwire.checkpoint").wait(TIMEOUT)
        if failed is not None:
            raise failed
        if bool(flags.any()):
            raise PeerError(f"rank {int(flags.argmax())} {failure}; its own error says why")


def _remove_beyond(folder: Path, world_size: int) -> None:
    """Remove what more ranks than now have left under the same tag."""
    for file in sorted(folder.glob(PATTERN))[world_size:]:
        file.unlink()
