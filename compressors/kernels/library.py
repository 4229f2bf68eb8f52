"""The library of native kernels: finding, loading and checking it. `native` has its functions.

Three variables of the environment are heeded, once, when this is imported:

- `GRADWIRE_NATIVE=0`: do without the library.
- `GRADWIRE_REQUIRE_NATIVE=1`: doing without it is an error.
- `GRADWIRE_ISA`: `avx512`, `avx2` or `plain` instead of the best that the processor has.

(`GRADWIRE_KERNELS` names another library; tests load one with sanitizers that way.)
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError

__all__ = ["ISAS", "Loaded", "load", "open_library"]

#: forms by their number in the library
ISAS = ("plain", "avx2", "avx512")

#: of csrc/dispatch.cpp; another one has other entry points
_INTERFACE = 1

_REMEDY = (
    "With a C++17 compiler in place (g++ or clang++), pip install --force-reinstall --no-deps --no-binary gradwire "
    "gradwire builds it; in a checkout, pip install -e ."
)

_FEED = (c_void_p, c_int32, c_int64, c_void_p, c_float, c_void_p)
#: result first
_SIGNATURES = {
    "gw_isa": (c_int32,),
    "gw_set_isa": (c_int32, c_int32),
    "gw_set_grain": (None, c_int64),
    "gw_all_finite": (c_int64, c_void_p, c_int32, c_int64, c_int32),
    "gw_copy": (c_int64, c_void_p, c_int32, c_int64, c_void_p, c_int32),
    "gw_total": (c_int64, *_FEED, c_int32),
    "gw_cast_encode": (c_int64, *_FEED, c_float, c_int32, c_void_p, c_int32),
    "gw_cast_decode_add": (c_int64, c_void_p, c_int32, c_int64, c_void_p, c_float, c_int32),
    "gw_sign_encode": (c_int64, *_FEED, c_int64, c_int32, c_void_p, c_int32),
    "gw_sign_decode_add": (c_int64, c_void_p, c_int64, c_int64, c_void_p, c_float, c_int32),
    "gw_sign_pack": (None, c_void_p, c_int32, c_int64, c_void_p, c_int32),
    "gw_sign_unpack_add": (None, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_float, c_int32),
    "gw_int8_encode": (c_int64, *_FEED, c_int64, c_int32, c_uint64, c_void_p, c_int32),
    "gw_int8_decode_add": (c_int64, c_void_p, c_int64, c_int64, c_void_p, c_float, c_int32),
    "gw_top_k_encode": (c_int64, *_FEED, c_int64, c_int32, c_void_p, c_void_p, c_int32, c_int32),
    "gw_gather_encode": (c_int64, *_FEED, c_void_p, c_int64, c_void_p, c_int32),
    "gw_put": (c_int64, c_void_p, c_void_p, c_int32, c_int64, c_void_p, c_int64),
    "gw_sparse_decode_add": (c_int64, c_void_p, c_int32, c_int64, c_void_p, c_void_p, c_int64, c_float, c_int32),
    "gw_sparse_indices": (c_int64, c_void_p, c_int32, c_int64, c_int64, c_void_p),
    "gw_scatter_add": (c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_float),
    "gw_draw": (c_int64, c_int64, c_int64, c_uint64, c_void_p),
}


class Loaded(NamedTuple):
    """The library, or why there is none."""

    library: ctypes.CDLL | None
    why_not: str = ""


def load() -> Loaded:
    """The library as the environment wants it.

    Raises:
        ImportError: there is none, and `GRADWIRE_REQUIRE_NATIVE=1`.
        ConfigError: `GRADWIRE_ISA` is no form, or none that this processor has.
    """
    loaded = _find()
    if loaded.library is None and os.environ.get("GRADWIRE_REQUIRE_NATIVE") == "1":
        raise ImportError(f"GRADWIRE_REQUIRE_NATIVE=1, but the native kernels are {loaded.why_not}")
    isa = os.environ.get("GRADWIRE_ISA", "")
    if isa and isa not in ISAS:
        raise ConfigError(f"GRADWIRE_ISA is {isa!r}, expected one of {', '.join(ISAS)}")
    if isa and loaded.library is not None and not loaded.library.gw_set_isa(ISAS.index(isa)):
        raise ConfigError(f"GRADWIRE_ISA is {isa!r}, which this processor lacks; unset it, or take 'plain'")
    return loaded


def _find() -> Loaded:
    if os.environ.get("GRADWIRE_NATIVE") == "0":
        return Loaded(None, "switched off by GRADWIRE_NATIVE=0; unset it")
    folder = Path(__file__).parents[1]
    named = os.environ.get("GRADWIRE_KERNELS")
    paths = [Path(named)] if named else sorted(folder.glob("_kernels*.so"))
    if not paths:
        return Loaded(None, f"not built: {folder} has no _kernels*.so. {_REMEDY}")
    try:
        return Loaded(open_library(paths[0]))
    except (OSError, AttributeError) as error:
        return Loaded(None, f"not loadable: {error}. {_REMEDY}")


def open_library(path: Path) -> ctypes.CDLL:
    """The library in a file, its functions declared.

    Raises:
        OSError: there is no library, or one of another version.
        AttributeError: an entry point is missing.
    """
    library = ctypes.CDLL(str(path))
    found = library.gw_interface()
    if found != _INTERFACE:
        raise OSError(f"{path} has interface {found}, expected {_INTERFACE}")
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
