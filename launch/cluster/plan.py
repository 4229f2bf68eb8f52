"""What `gradwire cluster` is asked for, and what COMMAND gets to know about it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .network import INTERFACE, Delay, Host, Rate, commands, hosts

__all__ = ["Plan"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An emulated cluster.

    Attributes:
        count: of hosts.
        ranks_per_host: slots of each host.
        rate: of each host's link, both ways.
        delay: from one host to another, one way.
        folder: of the files that launchers need.
    """

    count: int
    ranks_per_host: int
    rate: Rate
    delay: Delay | None
    folder: Path

    @property
    def hosts(self) -> list[Host]:
        return hosts(self.count)

    @property
    def hostfile(self) -> Path:
        return self.folder / "hostfile"

    @property
    def bin(self) -> Path:
        """First on COMMAND's PATH."""
        return self.folder / "bin"

    @property
    def agent(self) -> Path:
        """What launchers start commands in other hosts with."""
        return self.bin / "ssh"

    @property
    def state(self) -> Path:
        """What the agent has to know; process 1 writes it."""
        return self.folder / "state.json"

    def network(self) -> list[list[str]]:
        """The commands that make it."""
        return commands(self.hosts, self.rate, self.delay)

    def placeholders(self, index: int) -> dict[str, str]:
        """What stands for what in COMMAND, on the host with this index."""
        return {
            "{hosts}": ",".join(f"{host.address}:{self.ranks_per_host}" for host in self.hosts),
            "{hostfile}": str(self.hostfile),
            "{ranks}": str(self.count * self.ranks_per_host),
            "{hosts_count}": str(self.count),
            "{ranks_per_host}": str(self.ranks_per_host),
            "{interface}": INTERFACE,
            "{master}": self.hosts[0].address,
            "{agent}": str(self.agent),
            "{host_index}": str(index),
        }

    def variables(self, index: int) -> dict[str, str]:
        """What is set in COMMAND's environment: the same, and what makes launchers use this network."""
        own = {f"GRADWIRE_CLUSTER_{key[1:-1].upper()}": value for key, value in self.placeholders(index).items()}
        return own | {
            "HOROVOD_GLOO_IFACE": INTERFACE,
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "NCCL_SOCKET_IFNAME": INTERFACE,
            "TP_SOCKET_IFNAME": INTERFACE,
            "OMPI_MCA_plm_rsh_agent": str(self.agent),
            "OMPI_MCA_btl_tcp_if_include": INTERFACE,
            "OMPI_MCA_oob_tcp_if_include": INTERFACE,
            "OMPI_MCA_orte_tmpdir_base": str(self.folder),  # what it leaves behind when it is killed goes with it
            "OMPI_ALLOW_RUN_AS_ROOT": "1",  # in there everybody is root, and Open MPI refuses root unless told twice
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PDSH_RCMD_TYPE": "ssh",
        }

    def environment(self, index: int) -> dict[str, str]:
        """This process's environment with COMMAND's variables."""
        path = f"{self.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, **self.variables(index), "PATH": path}

    def words(self, command: Sequence[str], index: int) -> list[str]:
        """COMMAND with its placeholders replaced; other braces, such as those of JSON, stay."""
        known = self.placeholders(index)
        pattern = "|".join(map(re.escape, known))
        return [re.sub(pattern, lambda found: known[found[0]], word) for word in command]

    def etc_hosts(self, before: str) -> str:
        """A file /etc/hosts with the names of the hosts.

        PyTorch looks its peers up as IPv4 addresses in IPv6's form, and warns when that fails. These have names of
        their own, so that a host's name has one address.
        """
        names = [f"{host.address} {host.name}\n::ffff:{host.address} {host.name}.mapped\n" for host in self.hosts]
        return "".join([before.rstrip(), "\n", *names])
