"""The library of native kernels: finding, loading and checking it. The modules beside it have its functions.

Three variables of the environment are heeded, once, when this is imported:

- `GRADWIRE_NATIVE=0`: do without the library.
- `GRADWIRE_REQUIRE_NATIVE=1`: doing without it is an error.
- `GRADWIRE_ISA`: `avx512`, `avx2` or `plain` instead of the best that the processor has.

(`GRADWIRE_KERNELS` names another library; tests load one with sanitizers that way.)
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from ctypes import c_char_p, c_int64
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from ...errors import ConfigError

__all__ = ["ISAS", "Loaded", "load"]

#: forms by their number in the library
ISAS = ("plain", "avx2", "avx512")

#: of csrc/dispatch.cpp; another one has other entry points
_INTERFACE = 4

_REMEDY = (
    "With a C++17 compiler in place (g++ or clang++), pip install --force-reinstall --no-deps --no-binary gradwire "
    "gradwire builds it; in a checkout, pip install -e ."
)

#: x, residual, rest, n, decay, dtype; out, n, weight, threads, fresh; payload, n, k, width, exact; how values are coded
_FEED, _TARGET, _WHERE, _CODING = "PPPqfi", "Pqfhh", "Pqqii", "qQiii"
#: entry points, and what their records are packed of, as `struct` writes it; see csrc/entry.h
_RECORDS = {
    "all_finite": "Pqii",
    "copy": "PPqii",
    "total": _FEED + "i",
    "zero": "Pqi",
    "cast_encode": _FEED + "Pfii",
    "cast_decode_add": "P" + _TARGET + "i",
    "sign_encode": _FEED + "qPii",
    "sign_pack": "PPqii",
    "sign_unpack_add": "PPq" + _TARGET,
    "sign_decode_add": "Pq" + _TARGET,
    "levels_encode": _FEED + "qQPiii",
    "levels_decode_add": "Pq" + _TARGET + "i",
    "two_bit_encode": _FEED + "qPi",
    "two_bit_decode_add": "Pq" + _TARGET,
    "top_k_encode": _FEED + "qPPiii",
    "coded_encode": _FEED + _WHERE + "PPi" + _CODING,
    "coded_decode_add": _WHERE + "PPfi" + _CODING,
    "clear": _WHERE + "P",
    "sparse_decode_add": _WHERE + "PPfi",
    "sparse_indices": _WHERE + "P",
    "sparse_merge": "PPqPPqPP",
    "draw": "qqQP",
    "draw_encode": _FEED + "qQPi",
    "draw_decode_add": "PqQ" + _TARGET + "i",
}
#: entry points that take a number, or nothing
_NUMBERS = {"interface": (), "isa": (), "set_isa": (c_int64,), "set_grain": (c_int64,)}


Entry = Callable[..., int]


class Loaded(NamedTuple):
    """The entry points, by name; or why there are none."""

    entries: Mapping[str, Entry]
    why_not: str = ""


def load() -> Loaded:
    """The library as the environment wants it.

    Raises:
        ImportError: there is none, and `GRADWIRE_REQUIRE_NATIVE=1`.
        ConfigError: `GRADWIRE_ISA` is no form, or none that this processor has.
    """
    isa = os.environ.get("GRADWIRE_ISA", "")
    if isa and isa not in ISAS:
        raise ConfigError(f"GRADWIRE_ISA is {isa!r}, expected one of {', '.join(ISAS)}")
    loaded = _find()
    if not loaded.entries and os.environ.get("GRADWIRE_REQUIRE_NATIVE") == "1":
        raise ImportError(f"GRADWIRE_REQUIRE_NATIVE=1, but the native kernels are {loaded.why_not}")
    if isa and loaded.entries and not loaded.entries["set_isa"](ISAS.index(isa)):
        raise ConfigError(f"GRADWIRE_ISA is {isa!r}, which this processor lacks; unset it, or take 'plain'")
    return loaded


def _find() -> Loaded:
    if os.environ.get("GRADWIRE_NATIVE") == "0":
        return Loaded({}, "switched off by GRADWIRE_NATIVE=0; unset it")
    folder = Path(__file__).parents[2]
    named = os.environ.get("GRADWIRE_KERNELS")
    paths = [Path(named)] if named else sorted(folder.glob("_kernels*.so"))
    if not paths:
        return Loaded({}, f"not built: {folder} has no _kernels*.so. {_REMEDY}")
    try:
        return Loaded(_open(paths[0]))
    except (OSError, AttributeError) as error:
        return Loaded({}, f"not loadable: {error}. {_REMEDY}")


def _open(path: Path) -> dict[str, Entry]:
    """The entry points of a library.

    Raises:
        OSError: there is no library, or one of another age.
        AttributeError: an entry point is missing.
    """
    library = ctypes.CDLL(str(path))
    entries: dict[str, Entry] = {}
    for name, arguments in _NUMBERS.items():
        entries[name] = _declared(library, name, arguments)
    found = entries["interface"]()
    if found != _INTERFACE:
        raise OSError(f"{path} has interface {found}, expected {_INTERFACE}")
    for name, record in _RECORDS.items():
        entries[name] = _packing(Struct(record).pack, _declared(library, name, (c_char_p,)))
    return entries


def _declared(library: ctypes.CDLL, name: str, arguments: tuple[type, ...]) -> Entry:
    function = getattr(library, f"gw_{name}")
    function.argtypes, function.restype = arguments, c_int64
    return function


def _packing(pack: Callable[..., bytes], function: Entry) -> Entry:
    """The function, with its record's fields as arguments; ctypes would take three times as long to convert them."""
    return lambda *fields: function(pack(*fields))
