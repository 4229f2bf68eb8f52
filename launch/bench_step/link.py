"""Bytes that a host has sent, as its kernel counts them: with headers, acknowledgements and what was sent twice."""

from __future__ import annotations

from pathlib import Path

__all__ = ["sent_bytes"]

#: of the network namespace that the reading process is in, unlike /sys
COUNTERS = Path("/proc/self/net/dev")
#: where a line has what was sent; before it are eight numbers of what was received
SENT = 8


def sent_bytes(interface: str) -> int | None:
    """Since the interface was made; None: there is none of that name."""
    for line in COUNTERS.read_text().splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == interface:
            return int(counters.split()[SENT])
    return None
