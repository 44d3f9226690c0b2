"""Where a pool's local socket is: a folder that only its user can enter, and that the next pool removes if need be."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX, SOCKET = "kaas-pool-", "pool"
_TEMPORARY_BYTES = 64
"""Of the path that the folder is in: together with ours it must fit into a socket's 107."""


class SocketFolder:
    """A new folder. A pool that runs keeps it locked, so that those of pools that were killed are known."""

    def __init__(self) -> None:
        temporary = tempfile.gettempdir()
        parent = temporary if len(temporary) <= _TEMPORARY_BYTES else "/tmp"
        for left in Path(parent).glob(f"{PREFIX}*/{SOCKET}"):  # one that is not locked yet has no socket either
            with suppress(OSError):  # it is another user's, or somebody else has just removed it
                _tidy(left.parent)
        self.path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        self._file = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def close(self) -> None:
        """Once the socket is gone."""
        os.rmdir(self.path)
        os.close(self._file)


def _tidy(folder: Path) -> None:
    """Remove one whose pool is gone."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(file).st_uid == os.getuid():
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(file)
