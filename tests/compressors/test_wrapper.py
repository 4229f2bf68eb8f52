"""What is true of a codec is true of it wrapped, except for what a wrapper changes on purpose."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradwire import Compressor, Context, ErrorFeedback, SizePolicy, TensorMeta, choose
from gradwire.compressors.kernels import Feed
from gradwire.compressors.wrapper import Wrapper
from hypothesis import given
from hypothesis import strategies as st
from support.compressing import ALL, DTYPES

META = TensorMeta(name="w", shape=(40, 50), dtype=torch.float32)
#: whatever the questions below take
ARGUMENTS = {
    "meta": META,
    "ctx": Context(meta=META),
    "payload": torch.zeros(8, dtype=torch.uint8),
    **dict.fromkeys(("out", "vector", "scratch"), torch.zeros(META.numel)),
    "feed": Feed(torch.zeros(META.numel)),
    "state": {},
    "weight": 0.5,
}
WRAPPERS: list[tuple[Callable[[Compressor], Wrapper], set[str]]] = [
    (Wrapper, {"wants_memory"}),
    (ErrorFeedback, {"wants_memory", "unbiased", "elementwise_state", "_compress"}),
    (lambda codec: SizePolicy(codec, min_numel=0), {"wants_memory"}),
]


def facts() -> set[str]:
    """Everything that a codec says about itself, and does; `compress` is made of these."""
    public = {name for name in dir(Compressor) if not name.startswith("_")}
    return public - {"compress"} | {"_clear", "_compress", "_encode", "_decode", "_decode_add"}


def probe(answers: dict[str, Any], asked: set[str]) -> Compressor:
    """A codec that gives each fact an answer of its own, and notes that it was asked."""

    def member(name: str) -> Any:
        def answer(self: Compressor, *args: Any, **options: Any) -> Any:
            asked.add(name)
            return answers[name]

        return answer if inspect.isfunction(getattr(Compressor, name)) else property(answer)

    return type("Probe", (Compressor,), {name: member(name) for name in answers})()


def ask(compressor: Compressor, name: str, arguments: dict[str, Any]) -> Any:
    fact = getattr(compressor, name)
    if not inspect.ismethod(fact):
        return fact
    return fact(**{parameter: arguments[parameter] for parameter in inspect.signature(fact).parameters})


def changed(wrap: Callable[[Compressor], Wrapper]) -> set[str]:
    """The facts that are not simply the wrapped codec's."""
    looked_at = {"nbytes": 100, "entries": 3, "elementwise_state": frozenset({"probe"}), "_encode": ({}, True)}
    answers = {name: looked_at.get(name, object()) for name in facts()}
    asked: set[str] = set()
    wrapper = wrap(probe(answers, asked))

    def is_passed_on(name: str) -> bool:
        asked.clear()
        answer = ask(wrapper, name, ARGUMENTS)
        return name in asked and (
            answer is answers[name] or name.endswith(("_add", "_decode", "_clear"))
        )  # those return nothing

    return {name for name in answers if not is_passed_on(name)}


@pytest.mark.parametrize(("wrap", "on_purpose"), WRAPPERS)
def test_a_wrapper_changes_only_what_it_means_to(wrap: Callable[[Compressor], Wrapper], on_purpose: set[str]) -> None:
    assert changed(wrap) == on_purpose


@pytest.mark.parametrize(("wrap", "on_purpose"), WRAPPERS)
@pytest.mark.parametrize(
    "fact", [property(lambda self: 7), lambda self, meta: 7, 7], ids=["property", "method", "value"]
)
def test_a_new_fact_that_is_not_passed_on_is_noticed(
    monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Compressor], Wrapper], on_purpose: set[str], fact: object
) -> None:
    monkeypatch.setattr(Compressor, "novelty", fact, raising=False)
    assert changed(wrap) == on_purpose | {"novelty"}


@pytest.mark.parametrize("wrapper", [codec for codec in ALL if isinstance(codec, Wrapper)], ids=repr)
@given(shape=st.lists(st.integers(0, 40), max_size=3), dtype=st.sampled_from(DTYPES), summands=st.integers(1, 9))
def test_facts_of_real_codecs(wrapper: Wrapper, shape: list[int], dtype: torch.dtype, summands: int) -> None:
    meta = TensorMeta(name="w", shape=tuple(shape), dtype=dtype, summands=summands)
    serving = choose(wrapper, meta).codec if isinstance(wrapper, SizePolicy) else wrapper.compressor
    for name in facts() - {"wants_memory", "unbiased", "elementwise_state"}:
        of_class = getattr(Compressor, name)
        if isinstance(of_class, property):
            assert getattr(wrapper, name) == getattr(wrapper.compressor, name), name
        elif set(inspect.signature(of_class).parameters) == {"self", "meta"}:
            assert getattr(wrapper, name)(meta) == getattr(serving, name)(meta), name


@pytest.mark.parametrize("wrapper", [codec for codec in ALL if isinstance(codec, ErrorFeedback)], ids=repr)
def test_what_a_memory_changes(wrapper: ErrorFeedback) -> None:
    assert not wrapper.unbiased
    assert wrapper.elementwise_state == wrapper.compressor.elementwise_state | {"residual"}
