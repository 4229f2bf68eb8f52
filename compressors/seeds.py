"""Seeds for private generators, equal on every platform. The global generators are never used."""

from __future__ import annotations

import hashlib
from functools import lru_cache

__all__ = ["derive"]


@lru_cache(maxsize=4096)  # a step's decoder asks for what its encoder asked for
def derive(*parts: int | str) -> int:
    """A 63-bit seed from a base seed, a tensor's name, a step and whatever else tells streams apart."""
    text = "\0".join(f"str:{part}" if isinstance(part, str) else f"int:{int(part)}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
