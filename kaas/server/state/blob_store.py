"""Uploads of remote clients, complete or in part: files by hash, counted for each client.

Clients share no uploads: each has its own folder and must send all bytes itself. Otherwise a hash would show if another
client has certain bytes, and would give access to them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kaas.errors import QuotaExceeded, StateUnavailable
from kaas.server.state.state_folder import CONTENTS, State

LIBRARY, VALUE = "library", "value"
KINDS = {LIBRARY: "library_bytes", VALUE: "stored_bytes"}
"""The quota of each kind of uploads."""
GRAIN_BYTES = 64 << 10
"""The least bytes that an upload counts, since it takes so much of memory or disk."""
MOST_CONTENTS = 4096
"""The most uploads of one client, of both kinds together."""
PART = ".part"
HELD_AS = {LIBRARY: "libraries", VALUE: "objects"}
"""The names of the kinds in usage."""
KIND = CONTENTS
_OWN = re.compile(r"[0-9a-f]{64}(\.part)?")
"""Names of the files of uploads."""

_log = logging.getLogger(__name__)


class BlobLimits(Protocol):
    """Limits of a client; None for no limit."""

    @property
    def stored_bytes(self) -> int | None: ...

    @property
    def library_bytes(self) -> int | None: ...

    @property
    def kernels(self) -> int | None: ...

    @property
    def task_kernels(self) -> int | None: ...

    @property
    def build_s_per_minute(self) -> float | None: ...


Changed = Callable[[str, str, int], None]
LimitsOf = Callable[[str], BlobLimits]


class BlobRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of an upload on disk."""

    client: str
    hash: str
    nbytes: int
    kind: str
    signature: bytes


@dataclass(slots=True, eq=False)
class Blob:
    """An upload.

    Fields:
        signature: see `wire.Upload`. have: number of bytes that have come, from the first on. complete: True if all
            have come and the hash is right. uses: number of names and functions that use it; without any it may be
            evicted. gone: True if it was removed.
        turn: held while bytes are written. digest: hash of the bytes that have come, if known; an object of hashlib.
    """

    client: str
    hash: str
    nbytes: int
    kind: str
    signature: bytes
    path: Path
    have: int = 0
    complete: bool = False
    uses: int = 0
    gone: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    digest: Any = None

    @property
    def part(self) -> Path:
        """The file of an incomplete upload."""
        return self.path.with_name(self.hash + PART)

    @property
    def idle(self) -> bool:
        """True if it is neither used nor being written."""
        return not self.uses and not self.turn.locked()

    @property
    def counted_bytes(self) -> int:
        """The bytes that count for its client's quota."""
        return max(self.nbytes, GRAIN_BYTES)


@dataclass(slots=True)
class _ClientBlobs:
    """blobs: by hash, the least recently used first. extra: further counted bytes by kind. used: all counted bytes."""

    blobs: dict[str, Blob] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    used: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))


class BlobStore:
    """All uploads. Use an object of this class from one event loop only."""

    def __init__(self, state: State, limits: LimitsOf, changed: Changed) -> None:
        """changed: called with a client, "libraries" or "objects", and the bytes that the client now has of these."""
        self._state = state
        self._limits = limits
        self._changed = changed
        self._clients: dict[str, _ClientBlobs] = {}

    def open(self) -> None:
        """Load the uploads of earlier epochs. Damaged ones, and files without an entry, are set aside."""
        set_aside = self._state.set_aside
        known: set[Path] = set()
        for row in self._state.read(KIND, _decode):
            content = self._content(row.client, row.hash, row.nbytes, row.kind, row.signature)
            size = _size(content.path)
            content.complete = size == row.nbytes
            if size >= 0 and not content.complete:
                set_aside.file(content.path, f"an upload of {row.client!r} had {row.nbytes} bytes, and has {size}")
            # an unchecked upload must get its last byte again, since the check follows that
            content.have = row.nbytes if content.complete else min(_size(content.part), row.nbytes - 1)
            if content.complete or content.have > 0:
                known.add(content.path if content.complete else content.part)
                self._add(content)
            else:  # the server ended when the upload began, or while it was removed
                content.part.unlink(missing_ok=True)
                self._state.remove(KIND, row.client, row.hash)
        for folder in (self._state.folder / CONTENTS).glob("*"):
            self._tidy(folder, known)

    def _tidy(self, folder: Path, known: Set[Path]) -> None:
        """Set files without an entry aside: an entry is written before its file and removed after it, so it is lost."""
        set_aside = self._state.set_aside
        if folder.is_symlink() or not folder.is_dir():
            set_aside.file(folder, "it is no folder of a client's")
            return
        for path in set(folder.iterdir()) - known:
            own = _OWN.fullmatch(path.name) and path.is_file() and not path.is_symlink()
            set_aside.file(path, "its entry is lost" if own else "it is no client's upload")

    def damaged(self, content: Blob, why: str) -> None:
        """Set the file of a damaged upload aside, so that it can be uploaded again.

        Raises:
            OSError
        """
        self._state.set_aside.file(content.path, f"an upload of {content.client!r}: {why}")
        content.complete, content.have, content.digest = False, 0, None

    def _content(self, client: str, sha256: str, nbytes: int, kind: str, signature: bytes) -> Blob:
        return Blob(client, sha256, nbytes, kind, signature, self._state.folder_of(client) / sha256)

    def find(self, client: str, sha256: str) -> Blob | None:
        """Return an upload, complete or not; None if there is none."""
        known = self._clients.get(client)
        return known.blobs.get(sha256) if known is not None else None

    def full(self) -> bool:
        """Return True if the disk is full."""
        return self._state.reserve.full()

    def complete(self, client: str, sha256: str, kind: str) -> Blob | None:
        """Return an upload of this kind if it is complete, else None."""
        found = self.find(client, sha256)
        return found if found is not None and found.complete and found.kind == kind else None

    def used(self, client: str, kind: str) -> int:
        """Return the counted bytes of a client's uploads of a kind."""
        known = self._clients.get(client)
        return known.used[kind] if known is not None else 0

    # --- adding and removing

    def begin(self, client: str, sha256: str, nbytes: int, kind: str, signature: bytes = b"") -> Blob:
        """Begin a new, empty upload. Unused uploads may be removed for it.

        Raises:
            QuotaExceeded, StateUnavailable
        """
        content = self._content(client, sha256, nbytes, kind, signature)
        self.make_room(client, kind, content.counted_bytes, 1)
        with no_paths():
            for folder in (content.path.parent.parent, content.path.parent):  # the state's folder is not made again
                folder.mkdir(mode=0o700, exist_ok=True)
        if self._state.reserve.full():
            raise StateUnavailable("the server's disk is full")
        self.keep(content)
        self._add(content)
        return content

    def keep(self, content: Blob) -> None:
        """Write the entry of an upload, so that it outlives the server."""
        row = BlobRow(content.client, content.hash, content.nbytes, content.kind, content.signature)
        self._state.put(KIND, content.client, content.hash, msgspec.msgpack.encode(row))

    def _add(self, content: Blob) -> None:
        self._clients.setdefault(content.client, _ClientBlobs()).blobs[content.hash] = content
        self._count(content.client, content.kind, content.counted_bytes)

    def touch(self, content: Blob) -> None:
        """Mark an upload as the most recently used one."""
        blobs = self._clients[content.client].blobs
        blobs[content.hash] = blobs.pop(content.hash)

    def remove(self, content: Blob) -> None:
        """Remove an upload. Its file goes first: that makes room on a full disk. An entry without a file is ignored."""
        with no_paths():
            for path in (content.path, content.part):
                path.unlink(missing_ok=True)
        content.gone = True
        del self._clients[content.client].blobs[content.hash]
        self._count(content.client, content.kind, -content.counted_bytes)
        self._state.remove(KIND, content.client, content.hash)

    def has(self, client: str) -> bool:
        """Return True if a client has uploads."""
        known = self._clients.get(client)
        return known is not None and bool(known.blobs)

    def purge(self, client: str) -> None:
        """Remove all uploads of a client.

        Raises:
            StateUnavailable
        """
        known = self._clients.get(client)
        for content in list(known.blobs.values()) if known is not None else ():
            self.remove(content)

    def release(self, content: Blob) -> bool:
        """Count one use less. Return True if a value lost its last use and was removed."""
        content.uses -= 1
        if content.uses or content.kind != VALUE:
            return False
        try:
            self.remove(content)
        except StateUnavailable as error:  # the change that released it is done; the next run loads it, as unused
            _log.warning("an upload of %s stays: %s", content.client, error.message)
        return True

    # --- counting

    def charge(self, client: str, kind: str, nbytes: int) -> None:
        """Count bytes for a client in addition to its uploads.

        Raises:
            QuotaExceeded
        """
        self.make_room(client, kind, nbytes)
        self._clients.setdefault(client, _ClientBlobs()).extra[kind] += nbytes
        self._count(client, kind, nbytes)

    def refund(self, client: str, kind: str, nbytes: int) -> None:
        """Undo a `charge`."""
        self._clients[client].extra[kind] -= nbytes
        self._count(client, kind, -nbytes)

    def _count(self, client: str, kind: str, nbytes: int) -> None:
        used = self._clients[client].used
        used[kind] += nbytes
        self._changed(client, HELD_AS[kind], used[kind])

    def make_room(self, client: str, kind: str, nbytes: int, number: int = 0) -> None:
        """Make `nbytes` and `number` uploads fit: remove unused ones, or none if that is not enough.

        Raises:
            QuotaExceeded
        """
        known = self._clients.get(client) or _ClientBlobs()
        quota = KINDS[kind]
        limit: int | None = getattr(self._limits(client), quota)
        used = known.used[kind]
        going: list[Blob] = []
        if limit is not None and used + nbytes > limit:
            going = _first(known, kind, used + nbytes - limit)
            if used - sum(each.counted_bytes for each in going) + nbytes > limit:
                raise QuotaExceeded(
                    f"{client!r} has {used} of its {limit} bytes ({quota}), and asks for {nbytes} more",
                    client=client,
                    quota=quota,
                    limit=limit,
                    used=used,
                )
        excess = len(known.blobs) - len(going) + number - MOST_CONTENTS
        if excess > 0:
            rest = [each for each in known.blobs.values() if each.idle and each not in going]
            if len(rest) < excess:
                raise too_many(client, "contents", MOST_CONTENTS, len(known.blobs))
            going += rest[:excess]
        for each in going:
            self.remove(each)


def _first(known: _ClientBlobs, kind: str, nbytes: int) -> list[Blob]:
    """Return the idle uploads to remove for `nbytes`, or all idle ones if these are fewer."""
    going: list[Blob] = []
    for each in known.blobs.values():
        if nbytes <= 0:
            break
        if each.kind == kind and each.idle:
            going.append(each)
            nbytes -= each.counted_bytes
    return going


def too_many(client: str, what: str, limit: int, used: int) -> QuotaExceeded:
    """Return the error for a client with too many entries of a kind."""
    return QuotaExceeded(
        f"a client has at most {limit} {what} at this server", client=client, quota=what, limit=limit, used=used
    )


class no_paths:  # noqa: N801 - used as a statement
    """A context that raises an OSError as a StateUnavailable without paths, because clients see its text."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise StateUnavailable(f"the server could not use its disk: {error.strerror}") from None


def _size(path: Path) -> int:
    """Return the size of a file, -1 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


_decode = msgspec.msgpack.Decoder(BlobRow).decode
