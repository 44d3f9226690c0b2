"""The folder in which a server keeps what its clients have there: only its user's, and one server's at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kaas.errors import InvalidConfig, KaasError
from kaas.store import SqliteStore

_DIGEST = 32
"""Hex digits by which files know a client: its name could be a path."""


class State:
    """Fields:
    folder: where.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = SqliteStore(str(folder / "clients.sqlite"))
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
        self._store.open()

    def close(self) -> None:
        self._store.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- entries, by kind, client and name

    def read(self, kind: str) -> list[bytes]:
        """In the order in which they came."""
        return list(self._store.read(kind).values())

    def put(self, kind: str, client: str, name: str, entry: bytes) -> None:
        """
        Raises:
            KaasError
        """
        self.put_all(client, {kind: {name: entry}})

    def put_all(self, client: str, kinds: Mapping[str, Mapping[str, bytes]]) -> None:
        """Entries of a client by kind and name: all of them, or none.

        Raises:
            KaasError
        """
        with _written_down():
            self._store.put_all(
                {
                    kind: {_key(client, name): entry for name, entry in entries.items()}
                    for kind, entries in kinds.items()
                }
            )

    def remove(self, kind: str, client: str, name: str) -> None:
        """
        Raises:
            KaasError
        """
        with _written_down():
            self._store.remove(kind, [_key(client, name)])

    # --- files

    def folder_of(self, client: str) -> Path:
        """For a client's uploads; nothing but its user's can be read there."""
        return self.folder / "contents" / digest_of(client)


def digest_of(client: str) -> str:
    return hashlib.sha256(client.encode()).hexdigest()[:_DIGEST]


def _key(client: str, name: str) -> str:
    """No two of different clients or names are alike."""
    return f"{digest_of(client)}/{name}"


@contextmanager
def _written_down() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise KaasError(f"the server could not write down what changes: {error}") from error
