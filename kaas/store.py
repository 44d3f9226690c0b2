"""Named entries that outlive a pool's process, by default in a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

FUNCTIONS, TASKS, ACCOUNTS, FAULTS, PROFILES = "functions", "tasks", "accounts", "faults", "profiles"
"""Kinds of entries: specs of functions by key, kTasks by key, device seconds by client, faults by function, measured
times by kind of device and function."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS entries
    (id INTEGER PRIMARY KEY, kind TEXT, key TEXT, value BLOB, UNIQUE (kind, key));
"""
TABLES = ("entries",)
"""The tables of a SqliteStore."""


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
    """A Store in one file, which `open` makes if there is none. Stores of the same file are equal."""

    def __init__(self, path: str, locked_s: float = 5.0) -> None:
        """locked_s: how long a change waits while another process locks the file."""
        self.path, self.locked_s = path, locked_s
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, or make it.

        Raises:
            sqlite3.Error, OSError: there can be no such file.
        """
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        # one thread at a time uses it, not always the same one
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        # with NORMAL a loss of power may cost the newest changes, and damages nothing
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(SCHEMA)
        connection.execute(f"PRAGMA busy_timeout = {round(self.locked_s * 1000)}")
        self._connection = connection

    def put(self, kind: str, entries: Mapping[str, bytes]) -> None:
        """Add entries, or replace those of the same keys."""
        self.put_all({kind: entries})

    def put_all(self, kinds: Mapping[str, Mapping[str, bytes]]) -> None:
        """Add entries of several kinds: all of them, or none."""
        statement = (
            "INSERT INTO entries (kind, key, value) VALUES (?, ?, ?)"
            " ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value"
        )
        rows = [(kind, key, value) for kind, entries in kinds.items() for key, value in entries.items()]
        self._many(statement, rows)

    def remove(self, kind: str, keys: Iterable[str]) -> None:
        """Remove entries; keys without an entry are ignored."""
        self._many("DELETE FROM entries WHERE kind = ? AND key = ?", [(kind, key) for key in keys])

    def read(self, kind: str) -> dict[str, bytes]:
        """Return all entries of a kind, in the order in which their keys came."""
        return dict(self._opened().execute("SELECT key, value FROM entries WHERE kind = ? ORDER BY id", (kind,)))

    def clear(self, *kinds: str) -> None:
        """Remove all entries of these kinds."""
        self._many("DELETE FROM entries WHERE kind = ?", [(kind,) for kind in kinds])

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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
