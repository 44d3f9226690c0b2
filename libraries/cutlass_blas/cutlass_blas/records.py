"""The records of `tune`, in a SQLite file that processes share: each process reads it once, at its first product."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from cutlass_blas import sources
from cutlass_blas.errors import BlasError
from cutlass_blas.instances import parse
from kaas import cache_root, errors

log = logging.getLogger("cutlass_blas")

ENVIRONMENT = "KAAS_BLAS_RECORDS"
"""The environment variable that names another file."""
WAIT_S = 20.0
"""The time to wait for another process that is writing."""

_TABLE = "choices_1"
"""The number changes with the columns, so that two versions of this module can use one file."""
_MADE = f"""CREATE TABLE IF NOT EXISTS {_TABLE} (
    device TEXT, arch TEXT, kind TEXT, out TEXT, op_a TEXT, op_b TEXT, m INTEGER, n INTEGER, k INTEGER,
    align INTEGER, align_c INTEGER, batch INTEGER, gelu INTEGER,
    instance TEXT, version TEXT, slices INTEGER, seconds REAL,
    PRIMARY KEY (device, arch, kind, out, op_a, op_b, m, n, k, align, align_c, batch, gelu))"""
_KEY = "arch, kind, out, op_a, op_b, m, n, k, align, align_c, batch, gelu"


class Key(NamedTuple):
    """The key of a choice: a row-major product D[m, n] = op(A) op(B), with the fields of `Instance`.

    Fields:
        align, align_c: elements that divide extents, leading dimensions, offsets and strides of A and B, and of C.
        batch: the number of its entries, 1 without a batch.
    """

    arch: str
    kind: str
    out: str
    op_a: str
    op_b: str
    m: int
    n: int
    k: int
    align: int
    align_c: int
    batch: int
    gelu: bool


class Choice(NamedTuple):
    """An instance by its name, and the slices of its split-K: 1 is no split."""

    instance: str
    slices: int


class RecordsUnavailable(BlasError, OSError):
    """The file of the records can be neither opened nor made; `reason` is SQLite's or the system's."""

    path: str
    reason: str


class _State:
    """The records that this process has read, and the path of their file if `use` named one."""

    path: Path | None = None
    known: dict[tuple[str | int, ...], Choice] | None = None


_state = _State()
_lock = threading.Lock()


def path() -> Path:
    """Return the records' file: the one that `use` or the environment names, or blas.sqlite3 in `kaas.cache_root`."""
    if _state.path is not None:
        return _state.path
    named = os.environ.get(ENVIRONMENT)
    return Path(named) if named else cache_root() / "blas.sqlite3"


def use(path: str | os.PathLike[str] | None) -> None:
    """Let this process read and write another file; None: the usual file, which is read again."""
    with _lock:
        _state.path = None if path is None else Path(path)
        _state.known = None


def best(key: tuple[str | int, ...]) -> Choice | None:
    """Return the fastest choice for a Key, or for an equal tuple; None if it was never measured.

    A file that cannot be read counts as empty, and the log has a warning: the table and the rule then choose.
    """
    known = _state.known
    if known is None:
        known = _read()
    return known.get(key)


def store(key: Key, choice: Choice, device: str, seconds: float) -> None:
    """Keep a choice, in the place of another for the same key on the same device. A damaged file is renamed.

    Raises:
        RecordsUnavailable: the file cannot be written.
    """
    where = path()
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(where, key, choice, device, seconds)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            _rename_damaged(where, error)
            _write(where, key, choice, device, seconds)
    except (sqlite3.Error, OSError) as error:
        message = f"what was measured cannot be kept in {where}: {error}"
        raise RecordsUnavailable(message, path=str(where), reason=str(error)) from error
    with _lock:
        if _state.known is not None:
            _state.known[tuple(key)] = choice


def _write(where: Path, key: Key, choice: Choice, device: str, seconds: float) -> None:
    version = sources.version(choice.instance)
    values = (device, *key, choice.instance, version, choice.slices, seconds)
    with _connected(where) as connection:
        connection.execute(_MADE)
        marks = ", ".join("?" * len(values))
        columns = f"device, {_KEY}, instance, version, slices, seconds"
        connection.execute(f"INSERT OR REPLACE INTO {_TABLE} ({columns}) VALUES ({marks})", values)


def _read() -> dict[tuple[str | int, ...], Choice]:
    with _lock:
        if _state.known is None:
            _state.known = _rows(path())
        return _state.known


def _rows(where: Path) -> dict[tuple[str | int, ...], Choice]:
    # in the order of measuring: the last one counts if several devices of an architecture were measured
    query = f"SELECT {_KEY}, slices, instance, version FROM {_TABLE} ORDER BY rowid"
    try:
        if not where.exists():
            return {}
        with _connected(where) as connection:
            made = connection.execute("SELECT name FROM sqlite_master WHERE name = ?", (_TABLE,)).fetchone()
            rows = connection.execute(query).fetchall() if made else []
    except (sqlite3.Error, OSError) as error:
        log.warning("what tune() has measured cannot be read from %s: %s", where, error)
        return {}
    return {tuple(key): Choice(name, slices) for *key, slices, name, version in rows if _is_ours(name, slices, version)}


def _is_ours(name: object, slices: object, version: object) -> bool:
    """Return True if the kernel of this name is the kernel that was measured.

    It may have changed or be gone, and SQLite keeps any type in any column.
    """
    if not isinstance(name, str) or not isinstance(slices, int) or slices < 1:
        return False
    try:
        return sources.version(parse(name).name) == version
    except errors.UnknownSymbol:
        return False


@contextmanager
def _connected(where: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(where, timeout=WAIT_S, isolation_level=None)) as connection:
        yield connection


def _rename_damaged(where: Path, error: Exception) -> None:
    """Rename a damaged file, which stays for inspection; the records begin anew."""
    renamed = where.with_name(where.name + ".damaged")
    log.warning("%s is damaged (%s): it is now %s, and the records begin anew", where, error, renamed)
    with suppress(FileNotFoundError):  # another process was first
        where.replace(renamed)
    for suffix in ("-journal", "-wal", "-shm"):  # of the damaged file
        where.with_name(where.name + suffix).unlink(missing_ok=True)
