"""Which files this process has open, by kind: threads of Ray and of gRPC open TCP sockets and events at any time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def memory_files() -> list[str]:
    """What each descriptor of a memory file points to, with repetitions."""
    return [target for target in _targets() if target.startswith("/memfd:")]


def connections_on(path: str) -> int:
    """How many sockets are bound to this path or were accepted there, in all processes."""
    return sum(line.endswith(path) for line in Path("/proc/net/unix").read_text().splitlines())


def pipes_and_unix_sockets() -> set[str]:
    unix = {f"socket:[{line.split()[6]}]" for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    return {target for target in _targets() if target.startswith("pipe:") or target in unix}


def _targets() -> list[str]:
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return targets
