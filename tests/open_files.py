"""Files that this process has open, by kind: threads of Ray and of gRPC open TCP sockets and events at any time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

UNIX_SOCKETS = Path("/proc/net/unix")


def memory_files() -> list[str]:
    """Return the target of each descriptor of a memory file."""
    return [target for target in _targets() if target.startswith("/memfd:")]


def connections_on(path: str) -> int:
    """Return the number of sockets, of all processes, that are bound to this path or were accepted there."""
    return sum(line.endswith(f" {path}") for line in UNIX_SOCKETS.read_text().splitlines())


def files_of_children() -> list[str]:
    """Return the target of each descriptor by which a child is reached or watched: pipe, Unix socket or pidfd."""
    unix = {f"socket:[{line.split()[6]}]" for line in UNIX_SOCKETS.read_text().splitlines()[1:]}
    return [target for target in _targets() if target.startswith("pipe:") or "pidfd" in target or target in unix]


def _targets() -> list[str]:
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return targets
