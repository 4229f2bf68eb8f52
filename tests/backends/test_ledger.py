"""Runs and ledgers against a model: a dense vector per tensor, and a copy of it at every commit."""

from __future__ import annotations

import torch
from gradwire import FP16, ErrorFeedback, State
from gradwire.backends.ledger import Ledger
from gradwire.backends.runs import Change, Run, joined
from gradwire.compressors.memory import RESIDUAL
from hypothesis import given
from hypothesis import strategies as st
from support.reducing import bits

NUMEL = 12
CODEC = ErrorFeedback(FP16())
CPU = torch.device("cpu")

#: cuts of the tensor; every second range between them is changed
cuts = st.lists(st.integers(0, NUMEL), min_size=2, max_size=6, unique=True).map(sorted)
steps = st.lists(st.one_of(cuts, st.sampled_from(["commit", "rollback", "double"])), max_size=12)


def ranges(edges: list[int]) -> list[tuple[int, int]]:
    return list(zip(edges[::2], edges[1::2], strict=False))


def changed(run: Run | None, number: int, edges: list[int]) -> list[Change]:
    """New values for some ranges; every change counts one event."""
    changes = []
    for low, high in ranges(edges):
        before: State = run.cut(low, high, CODEC, CPU) if run else {}
        count = before.get("saturated", torch.tensor(0)) + 1
        values = 100.0 * number + torch.arange(low, high, dtype=torch.float32)
        changes.append(Change(low, high, before, {RESIDUAL: values, "saturated": count}))
    return changes


def dense(run: Run | None) -> torch.Tensor:
    return run.cut(0, NUMEL, CODEC, CPU).get(RESIDUAL, torch.zeros(NUMEL)) if run else torch.zeros(NUMEL)


def count(run: Run | None) -> int:
    return int(run.state["saturated"]) if run else 0


@given(steps)
def test_a_ledger_is_a_dense_vector_with_a_way_back(steps: list[list[int] | str]) -> None:
    ledger, model, events = Ledger(), torch.zeros(NUMEL), 0
    kept = (model.clone(), events)
    for number, step in enumerate(steps, start=1):
        if step == "commit":
            ledger.commit()
            kept = (model.clone(), events)
        elif step == "rollback":
            ledger.rollback()
            model, events = kept[0].clone(), kept[1]
        elif step == "double":
            ledger.update(lambda run: run.scaled(2.0, CODEC))
            model, kept = 2 * model, (2 * kept[0], kept[1])
        elif isinstance(step, list):
            run = ledger.get("w")
            ledger.put("w", joined(run, changed(run, number, step), CODEC))
            for low, high in ranges(step):
                model[low:high] = 100.0 * number + torch.arange(low, high)
            events += len(ranges(step))
        assert bits(dense(ledger.get("w"))) == bits(model)
        assert count(ledger.get("w")) == events
        committed = ledger.committed().get("w")
        assert bits(dense(committed)) == bits(kept[0])
        assert count(committed) == kept[1]


@given(cuts, cuts)
def test_a_draft_that_is_right_already_is_taken_as_it_is(first: list[int], second: list[int]) -> None:
    old = joined(Run(0, NUMEL, {}), changed(None, 1, first), CODEC)
    draft = dense(old).clone()
    changes = []
    for change in changed(old, 2, second):
        place = draft[change.low : change.high]
        place.copy_(change.after[RESIDUAL])
        changes.append(change._replace(after={**change.after, RESIDUAL: place}))
    new = joined(old, changes, CODEC, draft)
    assert new.state[RESIDUAL].data_ptr() == draft.data_ptr()
    assert bits(dense(new)) == bits(dense(joined(old, changed(old, 2, second), CODEC)))


def test_a_run_grows_with_zeros_between_what_it_has_seen() -> None:
    run = joined(None, [Change(7, 9, {}, {RESIDUAL: torch.ones(2)})], CODEC)
    assert (run.low, run.high) == (7, 9)
    run = joined(run, [Change(2, 4, {}, {RESIDUAL: torch.full((2,), 3.0)})], CODEC)
    assert (run.low, run.high) == (2, 9)
    assert run.state[RESIDUAL].tolist() == [3, 3, 0, 0, 0, 1, 1]
    assert run.cut(0, 3, CODEC, CPU)[RESIDUAL].tolist() == [0, 0, 3]


def test_what_a_change_leaves_out_is_zero_and_of_other_entries_the_last_counts() -> None:
    old = Run(0, 4, {RESIDUAL: torch.ones(4), "steps": torch.tensor(1)})
    changes = [Change(0, 2, {}, {"steps": torch.tensor(2)}), Change(3, 4, {}, {"steps": torch.tensor(3)})]
    run = joined(old, changes, CODEC)
    assert run.state[RESIDUAL].tolist() == [0, 0, 1, 0]
    assert run.state["steps"].item() == 3
