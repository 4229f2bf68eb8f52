"""Which native kernels are loaded, what the environment says about it, and what they refuse to be called with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest
import torch
from gradwire import ConfigError, UsageError
from gradwire.compressors import kernels
from gradwire.compressors.kernels import INT4, INT8, Coding, Feed, indices_of, native, reference
from gradwire.compressors.kernels.native.library import ISAS, load
from support.native_cases import FORMS, needs_native, running

X, BYTES = torch.ones(100), torch.zeros(1000, dtype=torch.uint8)
SHORT = BYTES[:10]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRADWIRE_NATIVE", "GRADWIRE_REQUIRE_NATIVE", "GRADWIRE_ISA", "GRADWIRE_KERNELS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", [name for name in reference.__all__ if name != "check_draw"])
def test_the_three_places_where_kernels_are_listed_agree(name: str) -> None:
    """The native form takes what the reference does, and how many threads; the package offers it."""
    slow, fast = (list(signature(getattr(form, name)).parameters) for form in (reference, native))
    assert [parameter for parameter in fast if parameter != "threads"] == slow
    assert getattr(kernels, name).__name__ == name


@needs_native
def test_the_best_form_of_the_processor_runs() -> None:
    assert native.isa() == FORMS[-1]
    assert native.why_not() == ""


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("GRADWIRE_NATIVE", "0", "switched off by GRADWIRE_NATIVE=0; unset it"),
        ("GRADWIRE_KERNELS", "/nowhere/kernels.so", "not loadable: /nowhere/kernels.so"),
    ],
)
def test_absence_has_a_reason_and_may_be_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(name, value)
    assert load().why_not.startswith(reason)
    assert not load().entries
    monkeypatch.setenv("GRADWIRE_REQUIRE_NATIVE", "1")
    with pytest.raises(ImportError, match=f"GRADWIRE_REQUIRE_NATIVE=1, but the native kernels are {reason}"):
        load()


def test_a_library_of_another_age_is_not_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = next(path for path in Path(torch.__file__).parent.glob("lib/libc10.so*"))
    monkeypatch.setenv("GRADWIRE_KERNELS", str(other))
    assert "gw_interface" in load().why_not
    assert "pip install" in load().why_not


@pytest.mark.parametrize("isa", ["sse2", "AVX2"])
def test_an_unknown_form_is_refused(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("GRADWIRE_ISA", isa)
    with pytest.raises(ConfigError, match="expected one of plain, avx2, avx512"):
        load()


@needs_native
@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_names_a_form(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("GRADWIRE_ISA", isa)
    with running(native.isa()):  # which undoes what `load` does
        if isa in FORMS:
            load()
            assert native.isa() == isa
        else:
            with pytest.raises(ConfigError, match="which this processor lacks"):
                load()


def test_without_native_kernels_the_package_works_all_the_same() -> None:
    code = (
        "import gradwire, torch\n"
        "from gradwire.compressors.kernels import native\n"
        "assert not native.available()\n"
        "x = torch.ones(64)\n"
        "ctx = gradwire.Context(meta=gradwire.TensorMeta(name='w', shape=(64,), dtype=torch.float32))\n"
        "done = gradwire.TopK(ratio=0.1).compress(x, {}, ctx)\n"
        "assert gradwire.TopK(ratio=0.1).decompress(done.payload, ctx).sum() == 7\n"
        "try:\n"
        "    native.all_finite(x)\n"
        "except gradwire.UsageError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    environment = os.environ | {"GRADWIRE_NATIVE": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the native kernels are switched off by GRADWIRE_NATIVE=0; unset it\n"


UNFIT: dict[str, Callable[[], object]] = {
    "a short payload of bits": lambda: native.sign_encode(Feed(X), 8, 1, SHORT),
    "a short payload of levels": lambda: native.levels_encode(Feed(X), INT8, 8, None, SHORT),
    "a short payload of places": lambda: native.top_k_encode(Feed(X), 5, SHORT),
    "a short payload of coded values": lambda: native.coded_encode(Feed(X), 50, SHORT, Coding(INT8, 8)),
    "a short payload of coded values to add": lambda: native.coded_decode_add(
        SHORT, 50, Coding(torch.float16), X.clone(), 1.0
    ),
    "a short out for coded values": lambda: native.coded_decode_add(BYTES, 101, Coding(None, 8), X.clone(), 1.0),
    "a block of values that ends within a byte": lambda: native.coded_encode(Feed(X), 50, BYTES, Coding(INT4, 9)),
    "another type of payload": lambda: native.sign_encode(Feed(X), 8, 1, torch.zeros(1000)),
    "a short out": lambda: native.copy(X, X[:50]),
    "a short out of another type": lambda: native.copy(X, X[:50].half()),
    "a cast to fp32": lambda: native.cast_encode(Feed(X), 1.0, X.clone()),
    "a short cast": lambda: native.cast_encode(Feed(X), 1.0, torch.zeros(50, dtype=torch.float16)),
    "a short residual": lambda: native.sign_encode(Feed(X, X[:50]), 8, 1, BYTES),
    "another type of residual": lambda: native.sign_encode(Feed(X, X.double()), 8, 1, BYTES),
    "a residual with holes": lambda: native.sign_encode(Feed(X, torch.ones(200)[::2]), 8, 1, BYTES),
    "a residual elsewhere": lambda: native.sign_encode(Feed(X, X.to("meta")), 8, 1, BYTES),
    "a short rest": lambda: native.total(Feed(X, rest=X[:50])),
    "another type of rest": lambda: native.total(Feed(X, rest=X.half())),
    "a block of no elements": lambda: native.levels_encode(Feed(X), INT8, 0, None, BYTES),
    "a block that ends within a byte": lambda: native.sign_encode(Feed(X), 12, 1, BYTES),
    "a block that ends within a byte of two": lambda: native.levels_encode(Feed(X), INT4, 9, None, BYTES),
    "a block that ends within a byte of four": lambda: native.two_bit_encode(Feed(X), 6, BYTES),
    "no entries": lambda: native.top_k_encode(Feed(X), 0, BYTES),
    "more entries than elements": lambda: native.sparse_decode_add(BYTES, 101, X.clone(), 1.0),
    "short scales": lambda: native.sign_unpack_add(BYTES, X[:5], 8, X.clone(), 1.0),
    "short bits": lambda: native.sign_pack(X, SHORT),
    "more draws than elements": lambda: native.draw(10, 11, 0),
    "a seed of more than 64 bits": lambda: native.draw(10, 1, 1 << 64),
    "runs without an element": lambda: native.draw_encode(Feed(X), 101, 0, torch.zeros(101)),
    "more values than elements": lambda: native.draw_decode_add(torch.zeros(101), 0, False, X.clone(), 1.0),
    "a short out for what is drawn": lambda: native.draw_encode(Feed(X), 5, 0, torch.zeros(4)),
    "indices of another type": lambda: native.sparse_merge(X[:1].int(), X[:1], X[:1].long(), X[:1]),
    "fewer values than indices": lambda: native.sparse_merge(X[:2].long(), X[:1], X[:1].long(), X[:1]),
    "a short payload to clear": lambda: native.clear(SHORT, 50, X.clone()),
}


@needs_native
@pytest.mark.parametrize("what", UNFIT)
def test_what_would_hurt_memory_is_refused(what: str) -> None:
    with pytest.raises(UsageError):
        UNFIT[what]()


@needs_native
def test_long_tensors_take_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: asked.append(1) or 2)
    assert native.all_finite(torch.zeros(1 << 21))
    assert asked
    assert native.all_finite(torch.zeros(1 << 10))
    assert len(asked) == 1


@needs_native
def test_what_the_library_refuses_the_reference_must_refuse_too(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = BYTES[: indices_of(100, 5).nbytes + 20].clone()
    monkeypatch.setattr(reference, "sparse_decode_add", lambda *_: None)
    with pytest.raises(AssertionError, match="refused what the reference accepts"):
        native.sparse_decode_add(payload, 5, X.clone(), 1.0)


@needs_native
def test_more_threads_than_a_record_holds_are_as_many_as_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1 << 20)
    out = torch.ones(1 << 21)
    native.cast_decode_add(torch.ones(1 << 21), out, 1.0)
    assert bool((out == 2).all())
