"""One call of a bucket reducer: a step whose means go back to where the gradients were."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..compressors import Compressor
from ..compressors.memory import RESIDUAL
from .exchange import Clock, Source
from .flat_plan import FlatPlan
from .ledger import Ledger
from .parts import Part, gaps
from .registry import Place
from .runs import Change, Run, joined
from .step import Step

__all__ = ["BucketCall"]


class BucketCall(Step):
    """Takes one flat bucket through its plan.

    Args:
        plan: how the bucket is exchanged.
        flat: the bucket.
        compressor: says which entries of a state are which.
        clock: call number, rank and seed.
        ordered: as for a `Step`.
    """

    def __init__(
        self, plan: FlatPlan, flat: torch.Tensor, compressor: Compressor, clock: Clock, *, ordered: bool
    ) -> None:
        super().__init__(plan.exchanges, clock, ordered=ordered)
        self._plan = plan
        self._flat = flat
        self._compressor = compressor
        self._drafts: dict[str, torch.Tensor] = {}

    def load(self, workers: Ledger, servers: Ledger) -> None:
        """Put every part of the bucket in its place, with what is kept for it."""
        if not self._plan.request.exact:
            self._drafts = self._made_drafts(workers)
        for place, part in self._plan.places:
            self.put(place, self._source(place, part, workers, servers))

    def give(self, out: torch.Tensor, scale: float) -> None:
        """Write what this rank gets of the means: to `out`, which may be the bucket; its padding becomes zero."""
        first = self._plan.given[0]
        with self._timing():
            for place, part in self._plan.places:
                if self._plan.is_given(part):
                    self._write(place, out[part.start - first : part.stop - first], scale)
        for start, stop in self._plan.blanks:
            out[start - first : stop - first].zero_()

    def keep(self, workers: Ledger, servers: Ledger) -> None:
        """Put the new states in the ledgers."""
        shards: dict[str, list[Change]] = {}
        tensors: dict[str, list[Change]] = {}
        for place, part in self._plan.places:
            source = self._sources[place.bucket][place.slot]
            after, answer = self.states(place)
            if part.name in self._drafts or source.state or after:
                tensors.setdefault(part.name, []).append(Change(part.offset, part.end, source.state, after))
            low, high = self._own_range(place, part)
            if low < high and (source.server or answer):
                shards.setdefault(part.name, []).append(Change(low, high, source.server, answer))
        for name, changes in tensors.items():
            old = workers.get(name) or Run(0, self._plan.numel_of(name), {})
            workers.put(name, joined(old, changes, self._compressor, self._drafts.get(name)))
        for name, changes in shards.items():
            servers.put(name, joined(servers.get(name), changes, self._compressor))

    def _source(self, place: Place, part: Part, workers: Ledger, servers: Ledger) -> Source:
        source = Source(self._flat[part.start : part.stop])
        if self._plan.request.exact:
            return source
        device = self._flat.device
        if (run := workers.get(part.name)) is not None:
            source.state = run.cut(part.offset, part.end, self._compressor, device)
        low, high = self._own_range(place, part)
        if low < high and (run := servers.get(part.name)) is not None:
            source.server = run.cut(low, high, self._compressor, device)
        if part.name in self._drafts:
            source.scratch = self._drafts[part.name][part.offset : part.end]
        return source

    def _own_range(self, place: Place, part: Part) -> tuple[int, int]:
        """The elements of the tensor that this rank encodes a second time."""
        own = self._exchanges[place.bucket].own_range(place.slot)
        return part.offset + own.start, part.offset + own.stop

    def _write(self, place: Place, out: torch.Tensor, scale: float) -> None:
        exchange, flight = self._exchanges[place.bucket], self._flights[place.bucket]
        flat = out if out.dtype == torch.float32 else torch.empty(out.shape, device=out.device)
        exchange.mean(flight, place.slot, flat, scale)
        if flat is not out:
            out.copy_(flat)

    def _made_drafts(self, workers: Ledger) -> dict[str, torch.Tensor]:
        """Storage for new residuals of whole tensors; where no part of this bucket lies they are as they were."""
        spans: dict[str, list[tuple[int, int]]] = {}
        for place, part in self._plan.places:
            if RESIDUAL in self._exchanges[place.bucket].bucket.slots[place.slot].codec.elementwise_state:
                spans.setdefault(part.name, []).append((part.offset, part.end))
        return {name: self._draft(name, sorted(pairs), workers.get(name)) for name, pairs in spans.items()}

    def _draft(self, name: str, spans: Sequence[tuple[int, int]], old: Run | None) -> torch.Tensor:
        draft = torch.empty(self._plan.numel_of(name), device=self._flat.device)
        for start, stop in gaps(spans, 0, draft.numel()):
            if old is not None and RESIDUAL in old.state:
                draft[start:stop] = old.state[RESIDUAL][start:stop]
            else:
                draft[start:stop] = 0
        return draft
