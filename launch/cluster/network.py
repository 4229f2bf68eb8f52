"""The network of `gradwire cluster`: a switch, a cable to each host, and how fast and slow the cables are."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Delay", "Host", "INTERFACE", "Rate", "UNSHAPED", "commands", "delay", "hosts", "rate"]

INTERFACE = "eth0"  # what DeepSpeed's openmpi launcher insists on
SWITCH = "switch"
SUBNET = "10.73.0"  # leads nowhere but to these hosts, so that it may be in use outside
RATE_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
RATE_LIMITS = (64 * 10**3, 100 * 10**9)
DELAY_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LONGEST_DELAY = 10.0
#: the longest a packet waits for its turn in tbf's queue
QUEUE = 0.05
#: of an idle link: what it sends at once; seconds, and at least some packets
BURST = 0.004
SMALLEST_BURST = 16384


class Rate(NamedTuple):
    """A rate as `tc` has it, and in bit/s; 0 is none."""

    text: str
    bits: int


class Delay(NamedTuple):
    """A delay as `tc` has it, and in seconds."""

    text: str
    seconds: float


class Host(NamedTuple):
    """An emulated host."""

    name: str
    address: str


UNSHAPED = Rate("unshaped", 0)


def rate(text: str) -> Rate:
    """A type for argparse: a rate in units of `tc`, or "unshaped"."""
    lower = text.lower()
    if lower == UNSHAPED.text:
        return UNSHAPED
    value = _quantity(lower, RATE_UNITS)
    low, high = RATE_LIMITS
    if value is None or not low <= value <= high:
        raise ArgumentTypeError(
            f"{text!r} is not allowed; allowed are a number and kbit, mbit or gbit from 64kbit to 100gbit, "
            f"such as 100mbit or 2.5gbit, and {UNSHAPED.text}"
        )
    return Rate(lower, round(value))


def delay(text: str) -> Delay:
    """A type for argparse: a time in units of `tc`."""
    value = _quantity(text.lower(), DELAY_UNITS)
    if value is None or not 0 < value <= LONGEST_DELAY:
        raise ArgumentTypeError(
            f"{text!r} is not allowed; allowed are a number and us, ms or s, above 0 and up to 10s, such as 5ms"
        )
    return Delay(text.lower(), value)


def _quantity(text: str, units: dict[str, int] | dict[str, float]) -> float | None:
    parts = re.fullmatch(rf"([0-9]+(?:\.[0-9]+)?)({'|'.join(units)})", text)
    return float(parts[1]) * units[parts[2]] if parts else None


def hosts(count: int) -> list[Host]:
    """Names and addresses."""
    return [Host(f"host{number}", f"{SUBNET}.{number}") for number in range(1, count + 1)]


def commands(hosts: Sequence[Host], rate: Rate, delay: Delay | None) -> list[list[str]]:
    """What makes the network, to be run in the switch's namespace; `{host1}` is a process in that host."""
    result = [
        ["ip", "link", "set", "dev", "lo", "up"],
        ["ip", "link", "add", "name", SWITCH, "type", "bridge"],
        ["ip", "link", "set", "dev", SWITCH, "up"],
    ]
    for number, host in enumerate(hosts, 1):
        result += _join(host, f"port{number}", rate, delay)
    return result


def _join(host: Host, port: str, rate: Rate, delay: Delay | None) -> list[list[str]]:
    """A cable from the switch's port to the host, slowed down at both ends: either shapes what it sends only."""
    process = f"{{{host.name}}}"
    inside = ["nsenter", "--target", process, "--net"]
    there = f"/proc/{process}/ns/net"  # a bare number might be the name of a namespace that `ip netns` has made
    return [
        ["ip", "link", "add", "name", port, "type", "veth", "peer", "name", INTERFACE, "netns", there],
        ["ip", "link", "set", "dev", port, "master", SWITCH],
        ["ip", "link", "set", "dev", port, "up"],
        *_shape([], port, rate, None),
        [*inside, "ip", "link", "set", "dev", "lo", "up"],
        [*inside, "ip", "address", "add", f"{host.address}/24", "dev", INTERFACE],
        [*inside, "ip", "link", "set", "dev", INTERFACE, "up"],
        *_shape(inside, INTERFACE, rate, delay),
    ]


def _shape(inside: list[str], device: str, rate: Rate, delay: Delay | None) -> list[list[str]]:
    add = [*inside, "tc", "qdisc", "add", "dev", device]
    place = ["root"]
    result = []
    if delay:
        result.append([*add, *place, "handle", "1:", "netem", "delay", delay.text, "limit", str(_packets(rate, delay))])
        place = ["parent", "1:1"]
    if rate.bits:
        bucket = ["burst", str(_burst(rate)), "latency", f"{QUEUE * 1000:.0f}ms"]
        result.append([*add, *place, "handle", "10:", "tbf", "rate", rate.text, *bucket])
    return result


def _burst(rate: Rate) -> int:
    """Bytes that a link which was idle sends at once."""
    return max(SMALLEST_BURST, round(rate.bits / 8 * BURST))


def _packets(rate: Rate, delay: Delay) -> int:
    """More than are on their way at a time: netem drops what goes beyond."""
    bits = rate.bits or RATE_LIMITS[1]
    return max(1000, round(2 * bits / 8 * delay.seconds / 1500))
