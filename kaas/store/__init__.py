"""Named entries that outlive a pool's process, by default in a SQLite file. Used in the pool's process."""

from __future__ import annotations

import logging
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from kaas.errors import InvalidConfig
from kaas.store.wal import WAL, is_empty, log_damage

FUNCTIONS, TASKS, ACCOUNTS, FAULTS, PROFILES = "functions", "tasks", "accounts", "faults", "profiles"
"""Kinds of entries: specs of functions by key, kTasks by key, device seconds by client, faults by function, measured
times by kind of device and function."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS entries
    (id INTEGER PRIMARY KEY, kind TEXT, key TEXT, value BLOB, UNIQUE (kind, key));
"""
TABLES = ("entries",)
"""The tables of a SqliteStore."""
_SEAL = struct.Struct("<cI")
"""Precedes a value: a byte with which no msgpack begins, and a checksum of the entry. SQLite detects damage in the
structure of its pages, but not in a value."""
_SEALED = b"\xc1"

T = TypeVar("T")
_log = logging.getLogger(__name__)


@runtime_checkable
class Store(Protocol):
    """Entries of several kinds, each with a key.

    A store is pickled to the pool's process before it is opened; a later process of the pool opens a copy of it, and
    finds all entries for which `put` has returned.
    """

    def open(self) -> None:
        """Open the store."""
        ...

    def put(self, kind: str, entries: Mapping[str, bytes]) -> None:
        """Add entries, or replace those of the same keys."""
        ...

    def remove(self, kind: str, keys: Iterable[str]) -> None:
        """Remove entries; keys without an entry are ignored."""
        ...

    def read(self, kind: str) -> dict[str, bytes]:
        """Return all entries of a kind, in the order in which their keys came."""
        ...

    def clear(self, *kinds: str) -> None:
        """Remove all entries of these kinds."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...


class SqliteStore:
    """A Store in one file, which `open` makes if there is none. Stores of the same file are equal.

    Fields:
        damaged: called by `read` with the kind, key and value of a damaged entry, which is left out, and the damage. By
            default it is logged.
    """

    def __init__(self, path: str, locked_s: float = 5.0) -> None:
        """locked_s: how long a change waits while another process locks the file."""
        self.path, self.locked_s = path, locked_s
        self.damaged: Callable[[str, str, object, str], None] = self._left_out
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, or make it.

        Raises:
            sqlite3.Error, OSError: there can be no such file.
        """
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and is_empty(path):
            _log.warning("%s is empty: if it had entries, they are lost", path)
        # one thread at a time uses it, not always the same one
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        # with NORMAL a loss of power may cost the newest changes, and damages nothing
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(SCHEMA)
        connection.execute(f"PRAGMA busy_timeout = {round(self.locked_s * 1000)}")
        self._connection = connection

    def check(self) -> None:
        """Read the whole file, and begin a change that is taken back.

        Raises:
            sqlite3.Error: it is damaged, or cannot be changed.
        """
        (found,) = self._opened().execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(" ".join(str(found).split()))
        for statement in ("BEGIN", "INSERT INTO entries (kind) VALUES ('')", "ROLLBACK"):
            self._opened().execute(statement)

    def put(self, kind: str, entries: Mapping[str, bytes]) -> None:
        """Add entries, or replace those of the same keys."""
        self.put_all({kind: entries})

    def put_all(self, kinds: Mapping[str, Mapping[str, bytes]]) -> None:
        """Add entries of several kinds: all of them, or none."""
        statement = (
            "INSERT INTO entries (kind, key, value) VALUES (?, ?, ?)"
            " ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value"
        )
        rows = [
            (kind, key, sealed(kind, key, value)) for kind, entries in kinds.items() for key, value in entries.items()
        ]
        self._many(statement, rows)

    def remove(self, kind: str, keys: Iterable[str]) -> None:
        """Remove entries; keys without an entry are ignored."""
        self._many("DELETE FROM entries WHERE kind = ? AND key = ?", [(kind, key) for key in keys])

    def read(self, kind: str) -> dict[str, bytes]:
        """Return all entries of a kind, in the order in which their keys came."""
        statement = "SELECT key, value FROM entries WHERE kind = ? ORDER BY id"
        found = {}
        for key, value in self._opened().execute(statement, (kind,)).fetchall():
            try:
                found[key] = unsealed(kind, key, value)
            except ValueError as error:
                self.damaged(kind, key, value, str(error))
        return found

    def clear(self, *kinds: str) -> None:
        """Remove all entries of these kinds."""
        self._many("DELETE FROM entries WHERE kind = ?", [(kind,) for kind in kinds])

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _left_out(self, kind: str, key: str, _: object, why: str) -> None:
        _log.error("an entry of %s is left out: %s %s: %s", self.path, kind, key, why)

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None, "open comes first"
        return self._connection

    def _many(self, statement: str, rows: Sequence[tuple[str | bytes, ...]]) -> None:
        connection = self._opened()
        connection.execute("BEGIN")  # all or nothing, and one flush to the disk for all
        try:
            connection.executemany(statement, rows)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk has ended it
                connection.execute("ROLLBACK")
            raise

    def __reduce__(self) -> tuple[type[SqliteStore], tuple[str, float]]:
        return SqliteStore, (self.path, self.locked_s)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqliteStore) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r})"


def sealed(kind: str, key: str, value: bytes) -> bytes:
    """Return a value with its seal."""
    return _SEAL.pack(_SEALED, _checksum(kind, key, value)) + value


def unsealed(kind: str, key: str, value: object) -> bytes:
    """Return a value without its seal. Values of older versions have none.

    Raises:
        ValueError: it is not what was written.
    """
    if not isinstance(value, bytes):
        raise ValueError(f"its value is of type {type(value).__name__}")
    if not value.startswith(_SEALED):
        return value
    if len(value) < _SEAL.size:
        raise ValueError("its seal is cut")
    _, checksum = _SEAL.unpack_from(value)
    entry = value[_SEAL.size :]
    if _checksum(kind, key, entry) != checksum:
        raise ValueError("its checksum is wrong")
    return entry


def _checksum(kind: str, key: str, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(f"{kind}/{key}/".encode()))


def opened(wanted: str | Store) -> Store:
    """Open the store of a pool: a file, or a given one.

    Raises:
        InvalidConfig: it cannot be opened, or its file is damaged.
    """
    store = SqliteStore(wanted) if isinstance(wanted, str) else wanted
    try:
        if isinstance(store, SqliteStore) and (damage := log_damage(Path(store.path))):
            raise sqlite3.DatabaseError(f"{store.path}{WAL}: {damage}")
        store.open()
        if isinstance(store, SqliteStore):
            store.check()
    except Exception as error:  # a user's own store may raise any error
        raise InvalidConfig(f"store {wanted!r} cannot be opened: {error}", field="store") from error
    return store


def decoded(store: Store, kind: str, decode: Callable[[bytes], T]) -> dict[str, T]:
    """Return the decoded entries of a kind by key. Undecodable ones are left out and logged."""
    found = {}
    for key, value in store.read(kind).items():
        try:
            found[key] = decode(value)
        except Exception as error:  # noqa: BLE001 - a damaged entry may raise any error
            _log.error("an entry of %r is left out: %s %s: %s: %s", store, kind, key, type(error).__name__, error)
    return found
