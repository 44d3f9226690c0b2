"""Repair of a damaged SQLite file: it is set aside, and every readable row goes into a new file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from kaas.store.wal import SHARED, WAL, mend_log

BUILDING, MENDED = ".building", ".mended"
"""Suffixes of a new file until it has all its rows, and then until the damaged file has been set aside."""
MOST_TRIED = 1 << 20
"""The most row ids between two readable parts of a table that are tried one by one."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNREADABLE = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS)
_PRIMARY_CODE = 0xFF
_HEADER = b"SQLite format 3\0"
_VERSIONS = (b"\1\1", b"\2\2")
"""The header's versions for writing and reading: without a log, and with one."""

Row = tuple[object, ...]
MoveAside = Callable[[Path, str], None]
"""Moves a file that may be missing, for a reason."""


def mend(path: Path, schema: str, tables: Sequence[str], set_aside: MoveAside) -> bool:
    """Leave a usable SQLite file at path, or none. Return True if a damaged one was set aside.

    Args:
        path: the file. schema: the statements that make its tables, always in this order. tables: those whose rows are
            saved. set_aside: called with the damaged file.

    Raises:
        sqlite3.Error, OSError: the file cannot be used for another reason than damage.
    """
    building, mended = (path.with_name(path.name + end) for end in (BUILDING, MENDED))
    if mended.exists():  # an earlier epoch was killed after it had saved the rows
        _set_aside(path, set_aside, "it was damaged; all of its rows that could be read are used")
        os.replace(mended, path)
        return True
    _remove(building)
    mend_log(path, set_aside)
    why = damage(path)
    if not why:
        return False
    saved = _save(path, building, schema, tables)
    os.replace(building, mended)
    _set_aside(path, set_aside, f"{why}; {saved} of its rows could be read and are used")
    os.replace(mended, path)
    return True


def _set_aside(path: Path, set_aside: MoveAside, why: str) -> None:
    """Set a file aside with its journal, which must not be applied to the new file."""
    for end in (WAL, SHARED, ""):
        set_aside(path.with_name(path.name + end), why)


def mended_copy(path: Path, schema: str, tables: Sequence[str], to: Path, set_aside: MoveAside) -> Path:
    """Return a copy of a SQLite file in the folder `to`, as `mend` would leave the file, which stays as it is."""
    copy = to / path.name
    for end in ("", MENDED, WAL, SHARED):
        with suppress(FileNotFoundError):
            shutil.copyfile(path.with_name(path.name + end), copy.with_name(copy.name + end))
    mend(copy, schema, tables, set_aside)
    return copy


def damage(path: Path, mode: str = "rw") -> str:
    """Return SQLite's description of a file's damage; "" for a sound file or none.

    Args:
        mode: of SQLite's connection. With "ro" the file stays as it is, and a server may use it meanwhile.

    Raises:
        sqlite3.Error: it cannot be read for another reason than damage.
    """
    if not path.exists():
        return ""
    try:
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return str(error)
    if found == "ok" and path.stat().st_size and _versions(path) not in _VERSIONS:
        return "its header has wrong versions, with which it cannot be written"
    return "" if found == "ok" else " ".join(str(found).split())


def _versions(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(20)[18:]


def is_damage(error: sqlite3.Error) -> bool:
    """Return True if an error shows that the file is damaged."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & _PRIMARY_CODE in _DAMAGED or code in _UNREADABLE  # other errors of the disk pass, as when it is full


def _save(path: Path, building: Path, schema: str, tables: Sequence[str]) -> int:
    """Copy the readable rows into a new file. Return their number."""
    saved = 0
    os.close(os.open(building, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(building, isolation_level=None)) as new:
        new.executescript(schema)
        with _readable(path, schema, tables) as old:
            new.execute("BEGIN")
            for table in tables:
                names = columns(new, table)
                into = f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(names))})"
                for row in _rows(old, table):
                    rest = [None] * (len(names) - len(row))  # new columns, which an older version did not have
                    with suppress(sqlite3.IntegrityError):  # a damaged row may have the key of another one
                        saved += new.execute(into, (*row, *rest)).rowcount
            new.execute("COMMIT")
    _remove(_copy_of(path))
    return saved


def columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return the names of a table's columns."""
    return [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]


def _copy_of(path: Path) -> Path:
    return path.with_name(path.name + ".copy")


def _readable(path: Path, schema: str, tables: Sequence[str]) -> closing[sqlite3.Connection]:
    """Open a copy of a damaged file. Its first page, without which no row can be read, is replaced if it does not lead
    to all tables: all other pages hold only rows."""
    copy = _copy_of(path)
    _copy(path, copy)
    connection = sqlite3.connect(copy, isolation_level=None)
    try:
        for table in tables:
            connection.execute(f"SELECT * FROM {table} LIMIT 0")
    except sqlite3.DatabaseError:
        connection.close()
        _copy(path, copy)
        _give_first_page(copy, schema)
        connection = sqlite3.connect(copy, isolation_level=None)
    connection.text_factory = lambda text: text.decode(errors="replace")
    return closing(connection)


def _copy(path: Path, to: Path) -> None:
    _remove(to)
    for end in ("", WAL):
        source = path.with_name(path.name + end)
        if source.exists():
            shutil.copyfile(source, to.with_name(to.name + end))
            to.with_name(to.name + end).chmod(0o600)


def _remove(path: Path) -> None:
    for end in (WAL, SHARED, "-journal", ""):
        path.with_name(path.name + end).unlink(missing_ok=True)


def _give_first_page(path: Path, schema: str) -> None:
    """Replace the first page by that of an empty file with the same tables, which lie at the same pages; see "The
    Database Header" in SQLite's "Database File Format"."""
    fresh = path.with_name(path.name + ".fresh")
    _remove(fresh)
    with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(schema)
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    page = bytearray(fresh.read_bytes()[:page_bytes])
    _remove(fresh)
    assert page.startswith(_HEADER), "SQLite has written it"
    pages = path.stat().st_size // page_bytes
    page[28:32] = pages.to_bytes(4, "big")
    page[32:40] = bytes(8)  # no page is known to be free
    page[92:96] = page[24:28]  # so that the number of pages counts
    with path.open("r+b") as file:
        file.write(page)


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[Row]:
    """Yield all readable rows of a table: those before the first damaged page, those behind the last one, and those
    between them that are found by their id."""
    before: dict[int, Row] = {}
    if _scan(connection, table, "ASC", before):
        yield from before.values()
        return
    behind: dict[int, Row] = {}
    _scan(connection, table, "DESC", behind)
    last = max(before, default=0)
    between: dict[int, Row] = {}
    tried = range(last + 1, min(behind)) if behind else ()
    for rowid in tried if tried and len(tried) <= MOST_TRIED else _listed(connection, table):
        if rowid in before or rowid in behind:
            continue
        with suppress(sqlite3.DatabaseError):
            row = connection.execute(f"SELECT * FROM {table} NOT INDEXED WHERE rowid = ?", (rowid,)).fetchone()
            if row is not None:
                between[rowid] = row
    found = before | between | behind
    yield from (found[rowid] for rowid in sorted(found))


def _scan(connection: sqlite3.Connection, table: str, order: str, found: dict[int, Row]) -> bool:
    """Read rows into `found`. Return True if no page was damaged."""
    try:
        for rowid, *row in connection.execute(f"SELECT rowid, * FROM {table} NOT INDEXED ORDER BY rowid {order}"):
            found[rowid] = tuple(row)
    except sqlite3.DatabaseError:
        return False
    return True


def _listed(connection: sqlite3.Connection, table: str) -> list[int]:
    """Return the row ids in an index of the table, as far as it can be read."""
    found: list[int] = []
    with suppress(sqlite3.DatabaseError):
        for (rowid,) in connection.execute(f"SELECT rowid FROM {table} INDEXED BY sqlite_autoindex_{table}_1"):
            found.append(rowid)
    return sorted(found)[:MOST_TRIED]
