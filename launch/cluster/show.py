"""What `gradwire cluster` without COMMAND shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .network import INTERFACE
from .plan import Plan

__all__ = ["show"]


def show(plan: Plan, start: Sequence[str]) -> None:
    """Print the plan: tables for people, commands as a shell would take them."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(hosts(plan))
    console.print(pairs("placeholder in COMMAND", "value", plan.placeholders(0)))
    console.print(pairs("environment variable", "value", plan.variables(0)))
    console.print(Text("\nin namespaces of their own, made by"))
    console.print(Text(f"  {shlex.join(start)}"))
    console.print(Text("with a process in each host, whose number stands for {host1}, …:"))
    for command in plan.network():
        console.print(Text("  " + " ".join(word if "{" in word else shlex.quote(word) for word in command)))
    console.print(Text("\nNothing was changed. With -- COMMAND it runs COMMAND in there."))


def hosts(plan: Plan) -> Table:
    """One row per host."""
    table = _table("host", "address", "interface", "slots", "rate, each way", "delay, one way")
    delay = plan.delay.text if plan.delay else "none"
    for host in plan.hosts:
        table.add_row(host.name, host.address, INTERFACE, str(plan.ranks_per_host), plan.rate.text, delay)
    return table


def pairs(first: str, second: str, values: Mapping[str, str]) -> Table:
    """One row per value."""
    table = _table(first, second)
    for name, value in values.items():
        table.add_row(Text(name), Text(value))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
