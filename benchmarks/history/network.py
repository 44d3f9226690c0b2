"""A network in namespaces: each client's programs have a link of their own to the server, which can be cut each way.

A link is cut by a wrong hardware address of the other end: packets are sent and arrive nowhere, as in a broken network,
and no program gets an error of the system.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

SERVER = "198.18.0.1"
"""Of a range for tests of networks."""
NOWHERE = "02:00:00:00:00:99"
WAYS = ("to the server", "to the client", "both")


class Network:
    """The links. It needs a network namespace in which this process may do everything; they end with that."""

    def __init__(self, clients: Sequence[str]) -> None:
        self._number = {client: number for number, client in enumerate(clients, 1)}
        self._inside = {client: _elsewhere() for client in clients}
        ip("link", "set", "lo", "up")
        ip("address", "add", f"{SERVER}/32", "dev", "lo")
        for client, number in self._number.items():
            ip("link", "add", f"s{number}", "type", "veth", "peer", "name", "c", "netns", str(self._inside[client].pid))
            ip("address", "add", f"198.18.{number}.1/30", "dev", f"s{number}")
            ip("link", "set", f"s{number}", "up")
            self._ip(client, "address", "add", f"198.18.{number}.2/30", "dev", "c")
            self._ip(client, "link", "set", "c", "up")
            self._ip(client, "route", "add", "default", "via", f"198.18.{number}.1")

    def prefix(self, client: str) -> list[str]:
        """Return the beginning of the command of a program at a client's end."""
        return ["nsenter", "-t", str(self._inside[client].pid), "-n"]

    def _ip(self, client: str, *words: str) -> None:
        subprocess.run([*self.prefix(client), "ip", *words], check=True)

    def cut(self, client: str, way: str) -> None:
        """Lose all packets of a link in one of WAYS from now on."""
        number = self._number[client]
        if way != "to the client":
            wrong = ("neighbour", "replace", f"198.18.{number}.1", "lladdr", NOWHERE, "dev", "c", "nud", "permanent")
            self._ip(client, *wrong)
        if way != "to the server":
            ip("neighbour", "replace", f"198.18.{number}.2", "lladdr", NOWHERE, "dev", f"s{number}", "nud", "permanent")

    def heal(self, client: str, way: str) -> None:
        """Undo a cut."""
        number = self._number[client]
        if way != "to the client":
            self._ip(client, "neighbour", "delete", f"198.18.{number}.1", "dev", "c")
        if way != "to the server":
            ip("neighbour", "delete", f"198.18.{number}.2", "dev", f"s{number}")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _elsewhere() -> subprocess.Popen[bytes]:
    """Start a process in a network namespace of its own; return once it is there."""
    process = subprocess.Popen(["unshare", "-n", "sh", "-c", "ip link set lo up; echo; exec sleep infinity"], stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    return process
