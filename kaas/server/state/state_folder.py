"""The folder with the state of a server's clients. Only its user may read it, and one server at a time uses it.

Damaged parts are set aside with their story (`kaas.server.state.set_aside`), and the rest is used: one bad byte, or a
misplaced file, does not keep a server from serving.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from kaas.errors import InvalidConfig, StateUnavailable
from kaas.server.state.mending import mend
from kaas.server.state.reserve import Reserve
from kaas.server.state.set_aside import SetAside
from kaas.store import SCHEMA, TABLES, SqliteStore
from kaas.store.wal import is_empty

CLIENTS = "clients.sqlite"
CONTENTS = "contents"
LOCKED_S = 0.05
"""How long a change waits while another process locks the database: the event loop waits too."""
LOCKED_AGAIN_S = 1.0
"""Seconds after which a change may be tried again that found the database locked."""
_DIGEST = 32
"""Hex digits of the digest that stands for a client in paths, since its name could be a path."""

T = TypeVar("T")


class State:
    """The state folder.

    Fields:
        folder: its path. set_aside: damaged parts. reserve: room on the disk.
    """

    def __init__(self, folder: Path, reserve: Reserve | None = None) -> None:
        self.folder = folder
        self.reserve = reserve or Reserve(folder)
        self.set_aside = SetAside(folder)
        self._store = SqliteStore(str(folder / CLIENTS), LOCKED_S)
        self._store.damaged = self._set_aside
        self._lock = -1
        self._opened: os.stat_result | None = None

    def open(self) -> None:
        """Lock the folder and open its database.

        Raises:
            InvalidConfig: other users may read or write it, another server uses it, or it cannot be made.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.lstat()
            if found.st_uid != os.getuid() or found.st_mode & 0o077 or self.folder.is_symlink():
                raise InvalidConfig(f"{self.folder} is open to other users", field="state")
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.reserve.with_room(self._open_store)
            self._opened = (self.folder / CLIENTS).stat()
        except BlockingIOError as error:
            self.close()
            raise InvalidConfig(f"another server uses {self.folder}", field="state") from error
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise InvalidConfig(f"{self.folder} cannot be used: {error}", field="state") from error

    def _open_store(self) -> None:
        path = self.folder / CLIENTS
        begins = is_empty(path)
        mended = mend(path, SCHEMA, TABLES, self.set_aside.file)
        if begins and not mended and any(folder.is_dir() for folder in (self.folder / CONTENTS).glob("*")):
            self.set_aside.story(f"{CLIENTS} is missing or empty, though clients have left something here")
        contents = self.folder / CONTENTS
        if contents.is_file():
            self.set_aside.file(contents, "it is no folder")
        self._store.open()

    def close(self) -> None:
        """Close the database and unlock the folder."""
        self._opened = None
        self._store.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def gone(self) -> bool:
        """Return True if the folder, or its database, was removed or renamed since it was opened."""
        if self._opened is None:
            return False
        try:
            return not os.path.samestat(self._opened, (self.folder / CLIENTS).stat())
        except FileNotFoundError:
            return True

    @property
    def damaged(self) -> bool:
        """True if damage was found: an unused file may then belong to a lost row."""
        return self.set_aside.count > 0

    # --- entries, by kind, client and name

    def read(self, kind: str, decode: Callable[[bytes], T]) -> list[T]:
        """Return the entries of a kind, in the order of their writing. Undecodable ones are set aside.

        Raises:
            StateUnavailable
        """
        with _state_errors():
            entries = self._store.read(kind)
        found = []
        for key, value in entries.items():
            try:
                found.append(decode(value))
            except Exception as error:  # noqa: BLE001 - a damaged entry may raise any error
                self._set_aside(kind, key, value, f"{type(error).__name__}: {error}")
        return found

    def drop(self, kind: str, client: str, name: str, entry: bytes, why: str) -> None:
        """Set an entry aside that can be decoded, but not used.

        Raises:
            StateUnavailable
        """
        self._set_aside(kind, _key(client, name), entry, why)

    def _set_aside(self, kind: str, key: str, value: object, why: str) -> None:
        data = value if isinstance(value, bytes) else repr(value).encode()
        with _state_errors():
            self.reserve.with_room(lambda: self.set_aside.data(f"{kind} {key}", data, why))
            self._remove(kind, [key])

    def put(self, kind: str, client: str, name: str, entry: bytes) -> None:
        """Write an entry.

        Raises:
            StateUnavailable
        """
        self.put_all(client, {kind: {name: entry}})

    def put_all(self, client: str, kinds: Mapping[str, Mapping[str, bytes]]) -> None:
        """Write entries of a client by kind and name: all of them, or none.

        Raises:
            StateUnavailable
        """
        with _state_errors():
            self._store.put_all(
                {
                    kind: {_key(client, name): entry for name, entry in entries.items()}
                    for kind, entries in kinds.items()
                }
            )

    def remove_all(self, kind: str, client: str) -> None:
        """Remove all entries of a client of a kind.

        Raises:
            StateUnavailable
        """
        begin = _key(client, "")
        with _state_errors():
            self._remove(kind, [key for key in self._store.read(kind) if str(key).startswith(begin)])

    def remove(self, kind: str, client: str, name: str) -> None:
        """Remove an entry.

        Raises:
            StateUnavailable
        """
        with _state_errors():
            self._remove(kind, [_key(client, name)])

    def _remove(self, kind: str, keys: Sequence[str]) -> None:
        """Remove entries, also on a full disk: nothing else makes room there."""
        self.reserve.with_room(lambda: self._store.remove(kind, keys))

    # --- files

    def folder_of(self, client: str) -> Path:
        """Return the folder of a client's uploads."""
        return self.folder / CONTENTS / digest_of(client)


def digest_of(client: str) -> str:
    """Return the digest that stands for a client in paths and keys."""
    return hashlib.sha256(client.encode()).hexdigest()[:_DIGEST]


def _key(client: str, name: str) -> str:
    """Return the key of an entry, unique for client and name."""
    return f"{digest_of(client)}/{name}"


@contextmanager
def _state_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        again = {"retry_s": LOCKED_AGAIN_S} if _is_locked(error) else {}
        raise StateUnavailable(f"the server could not use its state: {_words(error)}", **again) from error


def _is_locked(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _words(error: Exception) -> str:
    """Return an error's text without the name of a file, because clients see it."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
