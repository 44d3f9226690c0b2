"""A check of a server's state folder: that its files are whole and consistent. The check changes nothing.

It reads what a server would: of a damaged SQLite file a copy, repaired as a server repairs the file.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from kaas.errors import InvalidConfig, UsageUnavailable
from kaas.server.building import function_builder
from kaas.server.clients import tenants
from kaas.server.clients.allow import HASH
from kaas.server.state import blob_store, client_functions, durable_replies, object_store
from kaas.server.state.mending import MENDED, damage, mended_copy
from kaas.server.state.set_aside import FOLDER, STORY
from kaas.server.state.state_folder import CLIENTS, CONTENTS, digest_of
from kaas.server.usage import usage_file
from kaas.server.usage.journal import SEGMENT, Gap, charges, names_segment
from kaas.server.usage.usage_file import NAME, kept_usage, usage_of
from kaas.store import SCHEMA, TABLES, unsealed
from kaas.store.wal import is_empty, log_damage

KINDS: dict[str, Any] = {
    blob_store.KIND: blob_store.BlobRow,
    object_store.KIND: object_store.ObjectRow,
    client_functions.KIND: function_builder.FunctionRow,
    durable_replies.ANSWERS: durable_replies.DurableReply,
    tenants.KIND: tenants.TenantRow,
}
"""The values of the entries of each kind."""
_DAMAGED_ENTRY = (msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError)
"""Errors of reading a damaged entry: a value may be of any of SQLite's types."""
_PART = re.compile(r"[0-9a-f]{64}\.part")


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect. place: a file of the folder, or a row of one. what: the description."""

    place: str
    what: str


@dataclass(frozen=True, slots=True)
class CheckedState:
    """The result of a check.

    Fields:
        entries: number of readable ones. uploads: number of whole ones. nbytes: of these. requests: counted in usage.
            set_aside: number of parts that were set aside earlier. findings: the defects.
    """

    entries: int
    uploads: int
    nbytes: int
    requests: int
    set_aside: int
    findings: tuple[Finding, ...]


def check(folder: Path) -> CheckedState:
    """Check a state folder. With a running server, a change during the check may be reported as a finding.

    Raises:
        InvalidConfig: there is no state.
    """
    if not (folder / CLIENTS).exists() and not (folder / NAME).exists():
        message = f"{folder} is no state folder of a server: it has neither {CLIENTS} nor {NAME}"
        raise InvalidConfig(message, field="state")
    findings: list[Finding] = []
    with TemporaryDirectory(prefix="kaas-state-") as scratch:
        database = _recovered(folder / CLIENTS, SCHEMA, TABLES, Path(scratch), findings)
        found = list(_entries(database, findings))
        uploads = _rows_of_uploads(found)
        damaged: set[tuple[str, str]] = set()
        sizes = _uploads(folder, database, uploads, damaged, findings)
        usage = _recovered(folder / NAME, usage_file.SCHEMA, usage_file.TABLES, Path(scratch), findings)
        requests = _usage(folder, usage, findings)
    _references(found, uploads.keys() - damaged, findings)
    aside = sum(not path.name.endswith(STORY) for path in (folder / FOLDER).glob("*"))
    return CheckedState(len(found), len(sizes), sum(sizes), requests, aside, tuple(findings))


def _rows_of_uploads(entries: Iterable[Any]) -> dict[tuple[str, str], blob_store.BlobRow]:
    return {(each.client, each.hash): each for each in entries if isinstance(each, blob_store.BlobRow)}


def _recovered(path: Path, schema: str, tables: Sequence[str], to: Path, findings: list[Finding]) -> Path:
    """Return the path of a SQLite file, or of a repaired copy in the folder `to` if the file is damaged."""
    if not _damaged(path):
        return path
    told: dict[str, str] = {}

    def set_aside(moved: Path, why: str) -> None:
        if moved.exists():
            moved.unlink()
            told[why] = moved.name  # the last one: a file comes after its log

    try:
        return mended_copy(path, schema, tables, to, set_aside)
    except (OSError, sqlite3.Error) as error:
        told[f"it is damaged, and no copy of it could be repaired: {error}"] = path.name
        return path
    finally:
        findings.extend(Finding(name, why) for why, name in told.items())


def _damaged(path: Path) -> bool:
    """Return True if a server would repair a file. Its log is read twice: a server may write it meanwhile."""
    if path.with_name(path.name + MENDED).exists() or (log_damage(path) and log_damage(path)):
        return True
    try:
        return bool(damage(path, "ro"))
    except sqlite3.Error:  # reading its rows finds this too
        return False


def _read_only(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None))


def _entries(path: Path, findings: list[Finding]) -> Iterator[Any]:
    if not path.exists():
        return
    try:
        with _read_only(path) as connection:
            connection.text_factory = _text
            rows = connection.execute("SELECT kind, key, value FROM entries ORDER BY id").fetchall()
    except sqlite3.Error as error:  # for example it has no such table
        findings.append(Finding(path.name, str(error)))
        return
    for kind, key, value in rows:
        place = f"{path.name}: {kind} {key}"
        if kind not in KINDS:
            findings.append(Finding(place, "no server knows entries of this kind"))
            continue
        try:
            yield msgspec.msgpack.decode(unsealed(kind, key, value), type=KINDS[kind])
        except _DAMAGED_ENTRY as error:
            findings.append(Finding(place, f"{type(error).__name__}: {error}"))


def _text(data: bytes) -> str:
    """Decode the text of a row. A damaged text differs, and its checksum shows that."""
    return data.decode(errors="replace")


def _uploads(
    folder: Path,
    database: Path,
    known: dict[tuple[str, str], blob_store.BlobRow],
    damaged: set[tuple[str, str]],
    findings: list[Finding],
) -> list[int]:
    """Return the sizes of the complete and right uploads. The keys of wrong ones are added to `damaged`."""
    expected = {(digest_of(client), sha256): row for (client, sha256), row in known.items()}
    sizes: list[int] = []
    unnamed: list[Path] = []
    for path in sorted((folder / CONTENTS).glob("*/*")):
        place = str(path.relative_to(folder))
        row = expected.get((path.parent.name, path.name.removesuffix(blob_store.PART)))
        if not path.exists() and not path.is_symlink():
            continue  # a running server has removed it meanwhile
        if path.is_symlink() or not path.is_file() or not (HASH.fullmatch(path.name) or _PART.fullmatch(path.name)):
            findings.append(Finding(place, "it is no client's upload"))
        elif row is None:
            unnamed.append(path)
        elif HASH.fullmatch(path.name):
            try:
                wrong = _wrong(path, row)
            except FileNotFoundError:
                continue  # a running server has removed it meanwhile
            if wrong:
                findings.append(Finding(place, wrong))
                damaged.add((row.client, row.hash))
            else:
                sizes.append(row.nbytes)
    missing = [key for key, row in known.items() if _missing(folder, row)]
    # a running server may have changed both meanwhile
    left = _rows_of_uploads(_entries(database, [])) if missing or unnamed else {}
    named = {(digest_of(client), sha256) for client, sha256 in left}
    findings.extend(
        Finding(str(path.relative_to(folder)), "no entry refers to it")
        for path in unnamed
        if (path.parent.name, path.name.removesuffix(blob_store.PART)) not in named and path.exists()
    )
    findings.extend(
        Finding(f"{CLIENTS}: upload {sha256} of {client!r}", "its file is not there")
        for client, sha256 in missing
        if (client, sha256) in left
    )
    findings.extend(
        Finding(str(path.relative_to(folder)), "it is no folder of a client's")
        for path in (folder / CONTENTS).glob("*")
        if not path.is_dir()
    )
    return sizes


def _wrong(path: Path, row: blob_store.BlobRow) -> str:
    """Return the defect of an upload's file, "" for none.

    Raises:
        FileNotFoundError
    """
    if (size := path.stat().st_size) != row.nbytes:
        return f"it has {size} bytes, not {row.nbytes}"
    return "" if hash_of(path) == row.hash else "its bytes are not those that were uploaded"


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _missing(folder: Path, row: blob_store.BlobRow) -> bool:
    path = folder / CONTENTS / digest_of(row.client) / row.hash
    return not path.exists() and not path.with_name(path.name + blob_store.PART).exists()


def _references(found: list[Any], uploads: Set[tuple[str, str]], findings: list[Finding]) -> None:
    for each in found:
        wanted: list[str] = []
        if isinstance(each, object_store.ObjectRow):
            wanted = [each.hash]
        elif isinstance(each, function_builder.FunctionRow):
            wanted = [sha256 for sha256, _ in each.constants.values()]
        findings.extend(
            Finding(
                f"{CLIENTS}: {each.name!r} of {each.client!r}",
                f"upload {sha256}, which it needs, is not there or damaged",
            )
            for sha256 in wanted
            if (each.client, sha256) not in uploads
        )


def _usage(folder: Path, database: Path, findings: list[Finding]) -> int:
    for path in sorted(folder.glob(SEGMENT + "*")):
        try:
            segment = path.read_bytes() if names_segment(path) else None
        except FileNotFoundError:
            continue  # a running server has moved its charges into the SQLite file
        except IsADirectoryError:
            segment = None
        if segment is None:
            findings.append(Finding(path.name, "it is no part of the journal"))
            continue
        findings.extend(
            Finding(path.name, f"it is damaged from byte {gap.begin} to {gap.end}")
            for gap in charges(segment)
            if isinstance(gap, Gap)
        )
    if is_empty(database):
        return 0
    try:
        kept = kept_usage(folder, database)
    except UsageUnavailable as error:
        findings.append(Finding(NAME, error.fields["reason"]))
        return 0
    findings.extend(Finding(NAME, story) for story in kept.damaged)
    return sum(flow.requests for flow in usage_of(kept).flows)
