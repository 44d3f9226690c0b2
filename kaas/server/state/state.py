"""The folder in which a server keeps what its clients have there: only its user's, and one server's at a time.

Whatever of it is damaged is set aside with its story (`kaas.server.state.set_aside`), and the rest is used: one bad
byte, or a file that is out of place, keeps no server from serving.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from kaas.errors import InvalidConfig, KaasError
from kaas.server.state.mending import mend
from kaas.server.state.reserve import Reserve
from kaas.server.state.set_aside import SetAside
from kaas.store import SCHEMA, TABLES, SqliteStore

CLIENTS = "clients.sqlite"
CONTENTS = "contents"
_DIGEST = 32
"""Hex digits by which files know a client: its name could be a path."""
_SEAL = struct.Struct("<cI")
"""Before an entry: a byte with which no msgpack begins, and a checksum of the entry and its place."""
_SEALED = b"\xc1"

T = TypeVar("T")


class State:
    """Fields:
    folder: where. aside: what was damaged. reserve: of the disk.
    """

    def __init__(self, folder: Path, reserve: Reserve | None = None) -> None:
        self.folder = folder
        self.reserve = reserve or Reserve(folder)
        self.set_aside = SetAside(folder)
        self._store = SqliteStore(str(folder / CLIENTS))
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
            self._open_store()
        except BlockingIOError as error:
            self.close()
            raise InvalidConfig(f"another server uses {self.folder}", field="state") from error
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise InvalidConfig(f"{self.folder} cannot be used: {error}", field="state") from error

    def _open_store(self) -> None:
        path = self.folder / CLIENTS
        begins = not path.exists() or not path.stat().st_size
        mended = mend(path, SCHEMA, TABLES, self.set_aside)
        if begins and not mended and any(folder.is_dir() for folder in (self.folder / CONTENTS).glob("*")):
            self.set_aside.story(f"{CLIENTS} is missing or empty, though clients have left something here")
        self._store.open()

    def close(self) -> None:
        self._store.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def damaged(self) -> bool:
        """Whether something was found to be: then what nothing refers to may be what a lost row has referred to."""
        return self.set_aside.count > 0

    # --- entries, by kind, client and name

    def read(self, kind: str, decode: Callable[[bytes], T]) -> list[T]:
        """In the order in which they came. One that makes no sense is set aside.

        Raises:
            KaasError
        """
        found = []
        for key, value in self._store.read(kind).items():
            try:
                found.append(decode(unsealed(kind, key, value)))
            except Exception as error:  # noqa: BLE001 - whatever a damaged entry leads to
                self._set_aside(kind, key, value, f"{type(error).__name__}: {error}")
        return found

    def drop(self, kind: str, client: str, name: str, entry: bytes, why: str) -> None:
        """Set an entry aside that makes sense, but of which nothing can be made.

        Raises:
            KaasError
        """
        self._set_aside(kind, _key(client, name), entry, why)

    def _set_aside(self, kind: str, key: str, value: bytes, why: str) -> None:
        with _written_down():
            data = value if isinstance(value, bytes) else repr(value).encode()
            self.set_aside.data(f"{kind} {key}", data, why)
            self._store.remove(kind, [key])

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
                    kind: {(key := _key(client, name)): sealed(kind, key, entry) for name, entry in entries.items()}
                    for kind, entries in kinds.items()
                }
            )

    def remove_all(self, kind: str, client: str) -> None:
        """All entries of a client.

        Raises:
            KaasError
        """
        begin = _key(client, "")
        with _written_down():
            self._remove(kind, [key for key in self._store.read(kind) if str(key).startswith(begin)])

    def remove(self, kind: str, client: str, name: str) -> None:
        """
        Raises:
            KaasError
        """
        with _written_down():
            self._remove(kind, [_key(client, name)])

    def _remove(self, kind: str, keys: Sequence[str]) -> None:
        """Also on a full disk: nothing else makes room there."""
        self.reserve.with_room(lambda: self._store.remove(kind, keys))

    # --- files

    def folder_of(self, client: str) -> Path:
        """For a client's uploads; nothing but its user's can be read there."""
        return self.folder / CONTENTS / digest_of(client)


def digest_of(client: str) -> str:
    return hashlib.sha256(client.encode()).hexdigest()[:_DIGEST]


def sealed(kind: str, key: str, entry: bytes) -> bytes:
    """An entry as it is written: SQLite sees damage of its own pages' structure, and none within a value."""
    return _SEAL.pack(_SEALED, _checksum(kind, key, entry)) + entry


def unsealed(kind: str, key: str, value: bytes) -> bytes:
    """An entry; those that older versions have written have no seal.

    Raises:
        ValueError: it is not what was written.
    """
    if not value.startswith(_SEALED):
        return value
    _, checksum = _SEAL.unpack_from(value)
    entry = value[_SEAL.size :]
    if _checksum(kind, key, entry) != checksum:
        raise ValueError("its checksum is wrong")
    return entry


def _checksum(kind: str, key: str, entry: bytes) -> int:
    return zlib.crc32(entry, zlib.crc32(f"{kind}/{key}/".encode()))


def _key(client: str, name: str) -> str:
    """No two of different clients or names are alike."""
    return f"{digest_of(client)}/{name}"


@contextmanager
def _written_down() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise KaasError(f"the server could not write down what changes: {_words(error)}") from error


def _words(error: Exception) -> str:
    """Without a file's name: clients are told this."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
