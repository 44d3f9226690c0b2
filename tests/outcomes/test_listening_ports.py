"""A server listens where its configuration says, and nowhere else."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest

import kaas
from tests.server.conftest import Serve
from tests.server.servers import WIDTH, refused, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

LISTENS = "0A"


def processes(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return [pid, *(each for child in children for each in processes(child))]


def sockets(pid: int) -> set[str]:
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            link = os.readlink(file)
        except FileNotFoundError:
            continue  # it is closed by now
        if link.startswith("socket:["):
            found.add(link.removeprefix("socket:[").removesuffix("]"))
    return found


def address(text: str) -> tuple[str, int]:
    """Return an address as in /proc/net: words of four bytes, each in this machine's order."""
    host, port = text.split(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    return str(ip_address(b"".join(words))), int(port, 16)


def listening(pid: int) -> set[tuple[str, int]]:
    mine = set().union(*map(sockets, processes(pid)))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {address(line[1]) for line in lines if line[3] == LISTENS and line[9] in mine}


def test_a_server_without_ray(serve: Serve) -> None:
    server = serve({"metrics_port": 0})
    with kaas.Client(server.endpoint, keys=server.folder / "alice.keys", patience_s=TIMEOUT_S) as alice:
        assert alice.call(scaled(), {"x": np.ones(WIDTH, np.float32)}).result()[0] == 2
        port = int(server.endpoint.rpartition(":")[2])
        found = listening(server.process.pid)
        assert ("127.0.0.1", port) in found
        assert [host for host, _ in found] == ["127.0.0.1"] * 2  # for clients, and for metrics


def test_a_ray_without_token_authentication_is_refused(tmp_path: Path) -> None:
    """Its ports are open on all addresses of the machine, also if the server listens on one only."""
    said = refused(tmp_path, {"ray": True})
    assert "RAY_AUTH_MODE" in said
    assert "ray_without_token" in said
