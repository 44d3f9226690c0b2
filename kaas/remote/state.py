"""The folder in which a server keeps what its clients have there: only its user's, and one server's at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from kaas.errors import InvalidConfig
from kaas.store import SqliteStore

_DIGEST = 32
"""Hex digits by which files know a client: its name could be a path."""


class State:
    """Fields:
    folder: where. store: named entries there, from `open` to `close`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(str(folder / "clients.sqlite"))
        self._lock = -1

    def open(self) -> None:
        """
        Raises:
            InvalidConfig: others may read or write there, another server uses it, or it cannot be made.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.lstat()
            if found.st_uid != os.getuid() or found.st_mode & 0o077 or self.folder.is_symlink():
                raise InvalidConfig(f"{self.folder} is open to other users", field="state")
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise InvalidConfig(f"another server uses {self.folder}", field="state") from error
        except OSError as error:
            self.close()
            raise InvalidConfig(f"{self.folder} cannot be used: {error}", field="state") from error
        self.store.open()

    def close(self) -> None:
        self.store.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def folder_of(self, client: str) -> Path:
        """For a client's uploads; nothing but its user's can be read there."""
        return self.folder / "contents" / digest_of(client)


def digest_of(client: str) -> str:
    return hashlib.sha256(client.encode()).hexdigest()[:_DIGEST]


def entry_key(client: str, name: str) -> str:
    """Of a client's entry in the store; no two of different clients or names are alike."""
    return f"{digest_of(client)}/{name}"
