"""The host memory that this process may still take. Linux ends a process that takes more, without a word.

A software device's memory is host memory, as page-locked memory is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kaas.errors import OutOfDeviceMemory

PART = 8
"""An eighth of what a look has found is taken without another look, which may take milliseconds."""


class HostRoom:
    """Checks allocations of host memory, of all devices of this process."""

    def __init__(self, look: Callable[[], int]) -> None:
        """look: returns the bytes that this process may still take."""
        self._look = look
        self._allowed_bytes = 0

    def check(self, nbytes: int, device: str) -> None:
        """Check that an allocation has room. device: its name, for errors.

        Raises:
            OutOfDeviceMemory: the machine, or a control group of this process, has not enough.
        """
        if nbytes > self._allowed_bytes:
            left = self._look()
            if left < nbytes:
                self._allowed_bytes = 0
                message = f"{device}: {nbytes} bytes of host memory are needed, and this process may take {left} more"
                raise OutOfDeviceMemory(message, device=device, needed_bytes=nbytes, free_bytes=left)
            self._allowed_bytes = max(nbytes, left // PART)
        self._allowed_bytes -= nbytes


def available_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still take before Linux ends a process.

    Sources: MemAvailable of /proc/meminfo; limits of control groups, versions 1 and 2. What cannot be read is no limit.
    """
    found = [*_machine(root / "proc/meminfo"), *_groups(root)]
    return max(0, min(found)) if found else 1 << 62


def _machine(meminfo: Path) -> Iterator[int]:
    for line in _lines(meminfo):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) << 10


def _groups(root: Path) -> Iterator[int]:
    """Yield what each control group of this process leaves; files that are unused for long give way."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _group(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _group(root / "sys/fs/cgroup/memory", path, *files)


def _group(mount: Path, path: str, limit: str, usage: str, idle: str) -> Iterator[int]:
    folder = mount / path.lstrip("/")
    for each in (folder, *folder.parents):
        if each != mount and mount not in each.parents:
            return
        most, used = _number(each / limit), _number(each / usage)
        if most is not None and used is not None:
            stat = dict(line.split()[:2] for line in _lines(each / "memory.stat"))
            yield most - used + int(stat.get(idle, 0))


def _number(path: Path) -> int | None:
    (text, *_) = _lines(path) or [""]
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


HOST_ROOM = HostRoom(available_bytes)
