"""The memory of several processes together. What they share counts once, memory in files that none has mapped too."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+) +(.*)$")
FILE = "/memfd:"
"""The names of files of memory begin so."""


def memory_mb(pids: Collection[int]) -> float:
    """Return the memory of these processes in MiB, without those that have ended.

    Memory that they share with other processes counts by their part.

    Raises:
        PermissionError: a process has walls around it, and this one is not root's.
    """
    files: dict[int, int] = {}
    own_kb = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            files |= _open_files(pid)
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            own_kb += sum(kb for inode, kb in _mappings(pid) if inode not in files)
    return own_kb / 1024 + sum(files.values()) / (1 << 20)


def _open_files(pid: int) -> dict[int, int]:
    """Return the bytes of each file of memory that a process has open, by inode."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed
            if os.readlink(path).startswith(FILE):
                state = path.stat()
                found[state.st_ino] = 512 * state.st_blocks
    return found


def _mappings(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the inode of each file of memory that a process has mapped, 0 for other memory, and the part in KiB."""
    inode = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if found := MAPPING.match(line):
            inode = int(found[1]) if found[2].startswith(FILE) else 0
        elif line.startswith("Pss:"):
            yield inode, int(line.split()[1])
