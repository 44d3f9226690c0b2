"""A small disk for a server's state, which a test can fill."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

from kaas.server.state.reserve import RESERVE_BYTES
from tests.server.servers import Server

DISK_BYTES = RESERVE_BYTES + (10 << 20)
MOUNT = f'mount -t tmpfs -o size={DISK_BYTES},mode=700 none "$1" && shift && exec "$@"'


def on_small_disk(folder: Path) -> list[str]:
    """The prefix of a command that sees a disk of DISK_BYTES at a folder, in its own namespace."""
    return ["unshare", "-Urm", "sh", "-c", MOUNT, "sh", str(folder)]


def can_mount(folder: Path) -> bool:
    """Return True if this user may make such a disk."""
    try:
        return subprocess.run([*on_small_disk(folder), "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def within(server: Server, path: Path) -> Path:
    """Return the path of a file as the server sees it."""
    return Path(f"/proc/{server.process.pid}/root{path}")


def fill(path: Path) -> None:
    """Fill the free room with a file of another program. Room that is released later stays free."""
    with path.open("wb", buffering=0) as file:
        disk = os.fstatvfs(file.fileno())
        for blocks in range(disk.f_bfree, 0, -1):
            try:
                os.posix_fallocate(file.fileno(), 0, blocks * disk.f_frsize)
            except OSError as error:  # another process has written since
                if error.errno != errno.ENOSPC:
                    raise
            else:
                break
