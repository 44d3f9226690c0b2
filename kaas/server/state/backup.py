"""A consistent copy of a server's state folder. The server may run meanwhile."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from kaas.errors import InvalidConfig, KaasError
from kaas.server.state import blob_store
from kaas.server.state.state_folder import CLIENTS, CONTENTS, digest_of
from kaas.server.usage.journal import SEGMENT
from kaas.server.usage.usage_file import NAME
from kaas.store import unsealed

ATTEMPTS = 10
"""The most attempts, since clients may change the state while it is copied."""


def back_up(folder: Path, to: Path) -> int:
    """Copy the state, so that a server can start with the copy. Return the number of uploads in it.

    Args:
        folder: the state. to: a folder that is made.

    Raises:
        InvalidConfig: there is no state, or to exists.
        KaasError: it cannot be copied; the incomplete copy stays.
    """
    if not (folder / CLIENTS).exists():
        raise InvalidConfig(f"{folder} is no state folder of a server: it has no {CLIENTS}", field="state")
    try:
        to.mkdir(mode=0o700)
    except OSError as error:
        raise InvalidConfig(f"{to} cannot be made: {error.strerror}", field="to") from error
    try:
        _back_up_usage(folder, to)
        for _ in range(ATTEMPTS):
            _copy_database(folder / CLIENTS, to / CLIENTS)
            wanted = _wanted(to / CLIENTS)
            if all(_copied(folder, to, place) for place in wanted):
                _remove_others(to, wanted)
                return len(wanted)
    except (OSError, sqlite3.Error) as error:
        raise KaasError(f"{folder} cannot be copied to {to}: {error}") from error
    raise KaasError(f"{folder} changed {ATTEMPTS} times while it was copied: run this again when clients do less")


def _back_up_usage(folder: Path, to: Path) -> None:
    """Copy the journal first: charges that the file has taken from it meanwhile do not count twice."""
    for path in folder.glob(SEGMENT + "*"):
        try:
            _copy(path, to / path.name)
        except FileNotFoundError:
            continue  # the file has it now
    if (folder / NAME).exists():
        _copy_database(folder / NAME, to / NAME)


def _copy_database(path: Path, to: Path) -> None:
    os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    with (
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(to)) as target,
    ):
        source.backup(target)


def _wanted(path: Path) -> dict[str, int]:
    """Return the complete size of each upload of a copy, by its path in the folder."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT kind, key, value FROM entries WHERE kind = ?", (blob_store.KIND,)).fetchall()
    wanted = {}
    for kind, key, value in rows:
        try:
            row = msgspec.msgpack.decode(unsealed(kind, key, value), type=blob_store.BlobRow)
        except (msgspec.MsgspecError, ValueError):
            continue  # the server sets it aside when it starts
        wanted[f"{CONTENTS}/{digest_of(row.client)}/{row.hash}"] = row.nbytes
    return wanted


def _copied(folder: Path, to: Path, place: str) -> bool:
    """Copy an upload, complete or in part. Return True if it is in the copy."""
    for name in (place, place + blob_store.PART):
        try:
            (to / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if name.endswith(blob_store.PART) or not (to / name).exists():
                _copy(folder / name, to / name)
            return True
        except FileNotFoundError:
            continue
    return False


def _copy(path: Path, to: Path) -> None:
    with path.open("rb") as source, open(to, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as target:
        shutil.copyfileobj(source, target)


def _remove_others(to: Path, wanted: dict[str, int]) -> None:
    """Remove uploads that an earlier attempt has copied and that are not wanted."""
    for path in (to / CONTENTS).glob("*/*"):
        if str(path.relative_to(to)).removesuffix(blob_store.PART) not in wanted:
            path.unlink()
