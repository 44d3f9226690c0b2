"""Reserved room on a server's disk, so that charges and deletions go on when the disk is full."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

NAME = "reserve"
RESERVE_BYTES = 16 << 20
"""Enough for a hundred thousand charges of some 100 bytes each, until the operator makes room."""
LEAST_BYTES = 64 << 10
"""The smallest reserve, on a disk without room for all of it."""
T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_log = logging.getLogger(__name__)


def is_full(error: BaseException) -> bool:
    """Return True if an operation failed because the disk is full."""
    if isinstance(error, sqlite3.Error):  # with the second code, SQLite's file of shared memory finds no room
        code = getattr(error, "sqlite_errorcode", 0)
        return code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE
    return isinstance(error, OSError) and error.errno in _FULL


class Reserve:
    """A file that holds the room until it is needed. Any thread may call its methods.

    Fields:
        held: True while the file holds the room. used: True from its release until it is held again.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._fd = -1
        self._nbytes = 0
        self._releases = 0
        self._lock = threading.RLock()
        self.held = self.used = False

    def open(self) -> None:
        """Reserve the room, or less of it on a disk without so much.

        Raises:
            OSError: the file cannot be made.
        """
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._nbytes = RESERVE_BYTES
        while not self._take() and self._nbytes > LEAST_BYTES:
            self._nbytes //= 4
        if not self.held:
            self.used = True
            _log.error("the disk is full: there is no reserve for charges", extra={"path": str(self._path)})

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def with_room(self, write: Callable[[], T]) -> T:
        """Call a function that writes. If it finds the disk full, release the reserve and call it once more.

        The reserve may also have been released by another thread since the first call, whose room counts as well.

        Raises:
            OSError, sqlite3.Error: of the function.
        """
        releases = self._releases
        try:
            return write()
        except (OSError, sqlite3.Error) as error:
            if not is_full(error):
                raise
            with self._lock:
                if self._releases == releases and not self.release():
                    raise
        return write()

    def release(self) -> bool:
        """Release the room for the next writes. Return False if none was held."""
        with self._lock:
            if not self.held:
                return False
            os.ftruncate(self._fd, 0)
            self.held, self.used = False, True
            self._releases += 1
        _log.error("the disk is full: charges and deletions go on in the reserve, uploads do not",
                   extra={"path": str(self._path), "reserve_bytes": self._nbytes})  # fmt: skip
        return True

    def full(self) -> bool:
        """Return True if the disk is full: the reserve was released, and there is no room for it yet."""
        with self._lock:
            if self.used and self._fd >= 0 and self._take():
                self.used = False
                _log.info("the disk has room again, and the reserve is held", extra={"path": str(self._path)})
            return self.used

    def _take(self) -> bool:
        try:
            os.posix_fallocate(self._fd, 0, self._nbytes)
        except OSError as error:
            os.ftruncate(self._fd, 0)
            if not is_full(error):
                raise
            return False
        self.held = True
        return True
