"""Compressors as short strings, for command lines: `topk:ratio=0.01,values=fp16`.

A spec is a codec's name and, after a colon, options. Names and options are those of the dataclasses, and so are
the checks. A codec as an option's value takes its own options in parentheses: `topk:values=int8(block=64)`.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

from .base import Compressor
from .dense import BF16, FP16, NoCompression
from .errors import ConfigError
from .int8 import Int8
from .onebit import OneBit
from .options import nearest
from .randomk import RandomK
from .topk import TopK

__all__ = ["format_spec", "parse_spec"]

_CODECS = {
    "bf16": BF16,
    "fp16": FP16,
    "int8": Int8,
    "none": NoCompression,
    "onebit": OneBit,
    "randomk": RandomK,
    "topk": TopK,
}
_NAMES: dict[type[Compressor], str] = {codec: name for name, codec in _CODECS.items()}
_WORDS = {"true": True, "false": False, "none": None}
_COMMAS_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")
_NESTED = re.compile(r"(\w+)(?:\((.*)\))?")


def parse_spec(spec: str) -> Compressor:
    """The codec that a spec describes, without memory or policy (`with_defaults` adds them).

    Raises:
        ConfigError: an unknown name or option, or a value out of range; the text names what is allowed.
    """
    name, _, options = spec.strip().partition(":")
    return _build(name.strip().lower(), options)


def format_spec(compressor: Compressor) -> str:
    """The shortest spec that parses to an equal codec.

    Raises:
        ConfigError: a wrapper or a codec of your own, which have no spec.
    """
    name, options = _describe(compressor)
    return f"{name}:{options}" if options else name


def _build(name: str, options: str) -> Compressor:
    _check_known("compressor", name, list(_CODECS))
    codec = _CODECS[name]
    allowed = [field.name for field in fields(codec)]
    chosen: dict[str, Any] = {}
    for option in filter(None, map(str.strip, _COMMAS_OUTSIDE_PARENTHESES.split(options))):
        key, equals, value = map(str.strip, option.partition("="))
        _check_known(f"option of {name}", key, allowed)
        if not equals or key in chosen:
            raise ConfigError(f"{name}: option {option!r}, expected each once, as {key}=value")
        chosen[key] = _value(value)
    return codec(**chosen)


def _value(text: str) -> object:
    """Numbers, words and codecs; anything else stays a string, which the codec's own checks judge."""
    if text in _WORDS:
        return _WORDS[text]
    nested = _NESTED.fullmatch(text)
    if nested and nested[1] in _CODECS:
        return _build(nested[1], nested[2] or "")
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


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
