"""Compressors as short strings, for command lines: `topk:ratio=0.01,values=fp16`.

A spec is a codec's name and, after a colon, options. Names and options are those of the dataclasses, and so are
the checks. A codec as an option's value takes its own options in parentheses: `topk:values=int8(block=64)`.
`make_codec` does the same for a name and options that come apart already, as from a configuration file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from .base import Compressor
from .dense import BF16, FP16, NoCompression
from .errors import ConfigError
from .onebit import OneBit
from .options import nearest
from .quantizers import FP8, Int4, Int8, TwoBit
from .randomk import RandomK
from .topk import TopK

__all__ = ["format_spec", "is_known", "make_codec", "option_names", "parse_spec"]

_CODECS = {
    "bf16": BF16,
    "fp16": FP16,
    "fp8": FP8,
    "int4": Int4,
    "int8": Int8,
    "none": NoCompression,
    "onebit": OneBit,
    "randomk": RandomK,
    "topk": TopK,
    "twobit": TwoBit,
}
_NAMES: dict[type[Compressor], str] = {codec: name for name, codec in _CODECS.items()}
_WORDS = {"true": True, "false": False, "none": None}
_COMMAS_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")
_NESTED = re.compile(r"(\w+)(?:\((.*)\))?")


def parse_spec(spec: str) -> Compressor:
    """The codec that a spec describes, without memory or policy (`with_defaults` adds them).

    The form that an option's value has is understood as well: `int8(block=64)` for `int8:block=64`.

    Raises:
        ConfigError: an unknown name or option, or a value out of range; the text names what is allowed.
    """
    name, _, options = spec.strip().partition(":")
    return _nested(spec.strip()) or _build(name.strip().lower(), options)


def is_known(spec: str) -> bool:
    """Whether a spec begins with the name of a codec."""
    word = re.match(r"\s*(\w*)", spec)
    return word is not None and word[1].lower() in _CODECS


def format_spec(compressor: Compressor) -> str:
    """The shortest spec that parses to an equal codec.

    Raises:
        ConfigError: a wrapper or a codec of your own, which have no spec.
    """
    name, options = _describe(compressor)
    return f"{name}:{options}" if options else name


def option_names(name: str) -> list[str]:
    """The options of the codec of this name.

    Raises:
        ConfigError: an unknown name.
    """
    _check_known("compressor", name, list(_CODECS))
    return [field.name for field in fields(_CODECS[name])]


def make_codec(name: str, options: Mapping[str, object]) -> Compressor:
    """The codec of this name, with options of the types that it declares; a codec among them may be a string.

    Raises:
        ConfigError: an unknown name or option, or a value out of range; the text names what is allowed.
    """
    allowed = option_names(name)
    for key in options:
        _check_known(f"option of {name}", key, allowed)
    chosen: dict[str, Any] = {
        key: _nested(value) or value if isinstance(value, str) else value for key, value in options.items()
    }
    return _CODECS[name](**chosen)


def _build(name: str, options: str) -> Compressor:
    allowed = option_names(name)
    chosen: dict[str, object] = {}
    for option in filter(None, map(str.strip, _COMMAS_OUTSIDE_PARENTHESES.split(options))):
        key, equals, value = map(str.strip, option.partition("="))
        _check_known(f"option of {name}", key, allowed)
        if not equals or key in chosen:
            raise ConfigError(f"{name}: option {option!r}, expected each once, as {key}=value")
        chosen[key] = _value(value)
    return make_codec(name, chosen)


def _value(text: str) -> object:
    """Numbers and words; codecs and anything else stay strings."""
    if text in _WORDS:
        return _WORDS[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _nested(text: str) -> Compressor | None:
    """The codec that the value of an option stands for; None if it is another string, for the codec's own checks."""
    nested = _NESTED.fullmatch(text)
    return _build(nested[1].lower(), nested[2] or "") if nested and nested[1].lower() in _CODECS else None


def _describe(compressor: Compressor) -> tuple[str, str]:
    name = _NAMES.get(type(compressor))
    if name is None or not is_dataclass(compressor):
        raise ConfigError(f"{compressor!r} has no spec; specs exist for {', '.join(_CODECS)}")
    options = [
        f"{field.name}={_text(getattr(compressor, field.name))}"
        for field in fields(compressor)
        if getattr(compressor, field.name) != field.default
    ]
    return name, ",".join(options)


def _text(value: object) -> str:
    if isinstance(value, Compressor):
        name, options = _describe(value)
        return f"{name}({options})" if options else name
    return str(value).lower()


def _check_known(what: str, word: str, allowed: list[str]) -> None:
    if word not in allowed:
        raise ConfigError(f"unknown {what}: {word!r}{nearest(word, allowed)}; allowed: {', '.join(allowed)}")
