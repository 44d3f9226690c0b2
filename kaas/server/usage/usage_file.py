"""The files of usage: a SQLite file, and a journal of the charges that are not in it yet.

A charge is written to the journal with one system call before its reply is sent: from then on it survives a crash of
the server's process, but not a power failure. Once a second the journal goes on in a new segment, and the charges of
the old one go into the SQLite file, with its number, in one transaction that reaches the disk. So each charge counts
once, wherever the process ends: a segment whose number is in the file is not read again.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kaas.errors import UsageUnavailable
from kaas.server.state.mending import columns, mend
from kaas.server.state.reserve import Reserve
from kaas.server.state.set_aside import SetAside
from kaas.server.usage.journal import MODE, SEGMENT, Gap, charges, names_segment, segments
from kaas.server.usage.usage import KEYS_PER_CLIENT, Charge, FlowUsage, KeptByClient, Totals, Usage
from kaas.store.wal import is_empty

NAME = "usage.sqlite"
READS = 5
"""The most attempts of another process to read files that the server changes meanwhile."""
TABLES = ("folded", "flows", "holdings", "keys", "recent", "sm_time")

SCHEMA = """
CREATE TABLE IF NOT EXISTS folded (one INTEGER PRIMARY KEY CHECK (one = 1), segment INTEGER NOT NULL, sum INTEGER);
CREATE TABLE IF NOT EXISTS flows (
    client TEXT, function TEXT, requests INTEGER, outcomes TEXT, repeats INTEGER, device_ns INTEGER, bytes_in INTEGER,
    bytes_out INTEGER, bytes_copied INTEGER, sum INTEGER, PRIMARY KEY (client, function)
);
CREATE TABLE IF NOT EXISTS holdings (
    client TEXT, what TEXT, nbytes INTEGER, byte_s REAL, sum INTEGER, PRIMARY KEY (client, what)
);
CREATE TABLE IF NOT EXISTS keys (id INTEGER PRIMARY KEY, client TEXT, key TEXT, sum INTEGER, UNIQUE (client, key));
CREATE TABLE IF NOT EXISTS recent (client TEXT PRIMARY KEY, seconds TEXT, sum INTEGER);
CREATE TABLE IF NOT EXISTS sm_time (
    client TEXT, function TEXT, sm_ns INTEGER, sum INTEGER, PRIMARY KEY (client, function)
);
"""
_SUM = "sum"
"""The column with a checksum of the others: SQLite detects damage in the structure of its pages, but not in a number.
It is NULL in rows of older versions."""

T = TypeVar("T")

_seconds = msgspec.json.Decoder(list[tuple[int, int]]).decode
_outcomes = msgspec.json.Decoder(dict[str, int]).decode
_json = msgspec.json.Encoder(order="deterministic").encode


TAKEN = "another server has it"
"""The reason of an error if another server uses the folder."""


@dataclass(frozen=True, slots=True)
class Changes:
    """New values for the SQLite file.

    Fields:
        segment: the last segment of the journal that is part of them. flows, holdings: changed rows. keys: clients and
            keys of new charges. old_keys: keys in the file whose replies were received. recent: by client, nanoseconds
            of device time by second of the wall clock.
    """

    segment: int
    flows: Sequence[FlowUsage] = ()
    holdings: Sequence[KeptByClient] = ()
    keys: Sequence[tuple[str, str]] = ()
    old_keys: Set[tuple[str, str]] = frozenset()
    recent: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeptUsage:
    """The usage of earlier epochs.

    Fields:
        totals, holdings, recent: of the SQLite file. journal: later charges, in order. newest: the number of the last
            segment. damaged, gaps: stories of invalid rows and of parts of segments, which are left out.
    """

    totals: Totals
    holdings: Sequence[KeptByClient]
    recent: Mapping[str, Sequence[tuple[int, int]]]
    journal: Sequence[Charge]
    newest: int
    damaged: Sequence[str] = ()
    gaps: Sequence[str] = ()


class UsageFile:
    """The SQLite file of the only server of a folder. One other thread may call methods, except `open`.

    Fields:
        set_aside: damaged parts.
    """

    def __init__(self, folder: Path, reserve: Reserve) -> None:
        """reserve: room on the disk, which is opened and closed with the file."""
        self._folder, self._reserve = folder, reserve
        self._connection: sqlite3.Connection | None = None
        self._lock = -1
        self.set_aside = SetAside(folder)

    def open(self) -> KeptUsage:
        """Lock the folder, repair the file if it is damaged, and return the usage so far.

        Raises:
            UsageUnavailable: another server uses the folder, or the file cannot be made.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock, path = self._folder / "usage.lock", self._folder / NAME
            lost = lock.exists() and is_empty(path)
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, MODE)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._reserve.open()
            kept, mended = self._reserve.with_room(lambda: self._load(path))
            if lost and not mended:
                self.set_aside.story(f"{NAME} is missing or empty, though a server has kept usage here")
            for story in (*kept.damaged, *kept.gaps):
                self.set_aside.story(story)
            return kept
        except (OSError, sqlite3.Error, msgspec.MsgspecError) as error:
            self.close()
            reason = TAKEN if isinstance(error, BlockingIOError) else str(error)
            message = f"the usage of clients cannot be kept in {self._folder}: {reason}"
            raise UsageUnavailable(message, path=str(self._folder), reason=reason) from error

    def _load(self, path: Path) -> tuple[KeptUsage, bool]:
        """Open the file. Return the usage so far, and True if a damaged file was set aside.

        Raises:
            sqlite3.Error, OSError
        """
        mended = mend(path, SCHEMA, TABLES, self.set_aside.file)
        for stray in self._folder.glob(SEGMENT + "*"):
            if not (names_segment(stray) and stray.is_file()):
                self.set_aside.file(stray, "it is no part of the journal")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, MODE))  # sqlite3 would let other users read it
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection = connection
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # because the segment is deleted then
        connection.executescript(SCHEMA)
        for table in TABLES:
            if _SUM not in columns(connection, table):
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {_SUM} INTEGER")
        return _kept(connection, self._folder), mended

    def apply(self, changes: Changes) -> None:
        """Write all changes, or none; then delete the journal up to their segment. A full disk has room in the reserve.

        Raises:
            sqlite3.Error, OSError
        """
        self._reserve.with_room(lambda: self._apply(changes))

    def _apply(self, changes: Changes) -> None:
        assert self._connection is not None, "open comes first"
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            _write(connection, changes)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk has ended it
                connection.execute("ROLLBACK")
            raise
        for number, path in segments(self._folder):
            if number <= changes.segment:
                path.unlink()

    def close(self) -> None:
        """Close the file and unlock the folder."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._reserve.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _write(connection: sqlite3.Connection, changes: Changes) -> None:
    _put(connection, "folded", [(1, changes.segment)])
    _put(
        connection,
        "flows",
        [
            (flow.client, flow.function, flow.requests, _json(flow.outcomes).decode(), flow.repeats,
             flow.device_ns, flow.bytes_in, flow.bytes_out, flow.bytes_copied)
            for flow in changes.flows
        ],
    )  # fmt: skip
    _put(connection, "sm_time", [(flow.client, flow.function, flow.sm_ns) for flow in changes.flows])
    _put(connection, "holdings", [(held.client, held.what, held.nbytes, held.byte_s) for held in changes.holdings])
    connection.executemany("DELETE FROM keys WHERE client = ? AND key = ?", changes.old_keys)
    connection.executemany(
        f"INSERT OR IGNORE INTO keys (client, key, {_SUM}) VALUES (?, ?, ?)",
        [(*each, _checksum("keys", each)) for each in changes.keys],
    )
    connection.executemany(
        "DELETE FROM keys WHERE client = ?1 AND id <="
        " (SELECT id FROM keys WHERE client = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        [(client, KEYS_PER_CLIENT) for client in {client for client, _ in changes.keys}],
    )
    _put(connection, "recent", [(client, _json(seconds).decode()) for client, seconds in changes.recent.items()])


def _put(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add rows, or replace those of the same keys."""
    if rows:
        marks = ", ".join("?" * (len(rows[0]) + 1))
        summed = [(*row, _checksum(table, row)) for row in rows]
        connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", summed)


def _checksum(table: str, row: Sequence[Any]) -> int:
    return zlib.crc32(repr((table, *row)).encode(errors="backslashreplace"))


def _kept(connection: sqlite3.Connection, folder: Path) -> KeptUsage:
    """Return the usage so far.

    Raises:
        sqlite3.Error, OSError
    """
    made = segments(folder)  # first: a segment that is deleted later is in the file, or missing below
    rows = _TableRows(connection)
    connection.execute("BEGIN")  # one consistent view
    try:
        segment = max(rows.read("folded", lambda row: msgspec.convert(row[1], int)), default=0)
        totals = Totals()
        sm_ns = {tuple(names): nanoseconds for *names, nanoseconds in rows.read("sm_time", _sm_time)}
        for flow in rows.read("flows", _flow):
            name = flow.client, flow.function
            whole = msgspec.structs.replace(flow, sm_ns=sm_ns.get(name, flow.device_ns))  # as before there were shares
            totals.flow(*name)[1].merge(whole)
        for client, key in rows.read("keys", lambda row: msgspec.convert(row, tuple[str, str]), "ORDER BY id"):
            totals.remember(client, key)
        holdings = rows.read("holdings", lambda row: msgspec.convert(row, _HoldingRow))
        recent = dict(rows.read("recent", lambda row: (_text(row[0]), _seconds(row[1]))))
    finally:
        connection.execute("COMMIT")
    unfolded = [(number, path) for number, path in made if number > segment]
    journal: list[Charge] = []
    gaps: list[str] = []
    for _, path in unfolded:
        for found in charges(path.read_bytes()):
            if isinstance(found, Gap):
                gaps.append(f"{path.name} is damaged from byte {found.begin} to {found.end}")
            else:
                journal.append(found)
    newest = max([segment, *(number for number, _ in made)])
    held = [KeptByClient(*each) for each in holdings]
    return KeptUsage(totals, held, recent, journal, newest, rows.damaged, gaps)


_HoldingRow = tuple[str, str, int, float]
_FlowRow = tuple[str, str, int, str, int, int, int, int, int]


class _TableRows:
    """Rows of tables, without invalid ones. damaged: the stories of these."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.text_factory = lambda data: data.decode(errors="replace")  # its checksum shows that it is damaged
        self.damaged: list[str] = []

    def read(self, table: str, made: Callable[[Sequence[Any]], T], order: str = "") -> list[T]:
        """Return the valid rows of a table, converted by `made`.

        Raises:
            sqlite3.Error
        """
        names = columns(self._connection, table)
        own = [name for name in names if name not in ("id", _SUM)]
        checked = _SUM if _SUM in names else "NULL"
        found: list[T] = []
        if not names:
            return found  # of an older version
        for *row, checksum in self._connection.execute(f"SELECT {', '.join(own)}, {checked} FROM {table} {order}"):
            try:
                if checksum not in (None, _checksum(table, row)):
                    raise ValueError("its checksum is wrong")
                found.append(made(row))
            except (ValueError, TypeError) as error:  # a msgspec.MsgspecError is a ValueError
                self.damaged.append(f"a row of {NAME} in {table} is invalid: {error}: {row!r:.200}")
        return found


def _flow(row: Sequence[Any]) -> FlowUsage:
    client, function, requests, outcomes, *counts = msgspec.convert(row, _FlowRow)
    return FlowUsage(client, function, requests, _outcomes(outcomes), *counts)


def _sm_time(row: Sequence[Any]) -> tuple[str, str, int]:
    return msgspec.convert(row, tuple[str, str, int])


def _text(value: Any) -> str:
    return msgspec.convert(value, str)


def read_usage(folder: Path) -> Usage:
    """Read the usage from a state folder, whether its server runs or not, without changing it.

    Raises:
        UsageUnavailable
    """
    return usage_of(kept_usage(folder, folder / NAME))


def usage_of(kept: KeptUsage) -> Usage:
    """Return the usage with the charges of the journal, which are added to the totals."""
    for charge in kept.journal:
        kept.totals.add(charge)
    return Usage(kept.totals.usage(), tuple(kept.holdings))


def kept_usage(folder: Path, path: Path) -> KeptUsage:
    """Read the files of usage, as `read_usage`. path: of the SQLite file.

    Raises:
        UsageUnavailable
    """
    for attempt in range(READS):
        try:
            with closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            ) as connection:
                return _kept(connection, folder)
        except (OSError, sqlite3.Error, msgspec.MsgspecError) as error:
            if isinstance(error, FileNotFoundError) and attempt + 1 < READS:
                continue  # the server has moved a segment into the file meanwhile
            raise UsageUnavailable(f"{path} cannot be read: {error}", path=str(path), reason=str(error)) from error
    raise AssertionError("the last attempt returns or raises")
