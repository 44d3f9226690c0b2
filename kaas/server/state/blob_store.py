"""What remote clients have uploaded, complete or in part: files known by their hashes, counted by client.

No client gains by what another has: each has a folder of its own, and what it has not sent itself is not there for it.
If uploads were shared, their hashes would be a way to ask whether somebody else here has certain bytes, and to get them
without having them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kaas.errors import KaasError, QuotaExceeded
from kaas.server.state.state import CONTENTS, State

LIBRARY, VALUE = "library", "value"
KINDS = {LIBRARY: "library_bytes", VALUE: "stored_bytes"}
"""Kinds of uploads, and the quotas that they are counted by."""
GRAIN_BYTES = 64 << 10
"""Each takes at least this much of memory or disk, and counts so."""
MOST_CONTENTS = 4096
"""Of one client, of both kinds together."""
PART = ".part"
HELD_AS = {LIBRARY: "libraries", VALUE: "objects"}
"""Kinds, as those know them who are told how many bytes a client has."""
KIND = "contents"
_OWN = re.compile(r"[0-9a-f]{64}(\.part)?")
"""Files that uploads make."""


class BlobLimits(Protocol):
    """What a client may have here; None for no limit."""

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


class KeptBlobs(msgspec.Struct, frozen=True, array_like=True):
    client: str
    hash: str
    nbytes: int
    kind: str
    signature: bytes


@dataclass(slots=True, eq=False)
class Blob:
    """An upload.

    Fields:
        signature: see `wire.Upload`. have: bytes that are there, from the first on. complete: all, and of the right
            hash. uses: names and functions that need it; without any it gives way to others. gone: it has.
        turn: for who writes to it. digest: of what is there, if it is known; an object of hashlib.
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
        return self.path.with_name(self.hash + PART)

    @property
    def idle(self) -> bool:
        return not self.uses and not self.turn.locked()

    @property
    def counted_bytes(self) -> int:
        return max(self.nbytes, GRAIN_BYTES)


@dataclass(slots=True)
class _Client:
    """contents: those longest without use first. extra: bytes that count by kind and are no contents."""

    contents: dict[str, Blob] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    used: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))


class BlobStore:
    """Belongs to one event loop."""

    def __init__(self, state: State, limits: LimitsOf, changed: Changed) -> None:
        """changed: told a client, "libraries" or "objects", and how many bytes that client has of these from now on."""
        self._state = state
        self._limits = limits
        self._changed = changed
        self._clients: dict[str, _Client] = {}

    def open(self) -> None:
        """Find what an earlier life has left. What is damaged is set aside; files that nobody knows are removed."""
        aside = self._state.set_aside
        known: set[Path] = set()
        for kept in self._state.read(KIND, _decode):
            content = self._content(kept.client, kept.hash, kept.nbytes, kept.kind, kept.signature)
            size = _size(content.path)
            content.complete = size == kept.nbytes
            if size >= 0 and not content.complete:
                aside.file(content.path, f"an upload of {kept.client!r} had {kept.nbytes} bytes, and has {size}")
            # the last byte of one that was not found to be right comes once more, so that somebody looks
            content.have = kept.nbytes if content.complete else min(_size(content.part), kept.nbytes - 1)
            if content.complete or content.have > 0:
                known.add(content.path if content.complete else content.part)
                self._add(content)
            else:
                self._state.remove(KIND, kept.client, kept.hash)
        for folder in (self._state.folder / CONTENTS).glob("*"):
            self._tidy(folder, known)

    def _tidy(self, folder: Path, known: Set[Path]) -> None:
        """Have nothing there but what is known. What a client has deleted goes; what may be somebody's is set aside."""
        aside = self._state.set_aside
        if folder.is_symlink() or not folder.is_dir():
            aside.file(folder, "it is no folder of a client's")
            return
        for path in set(folder.iterdir()) - known:
            if not _OWN.fullmatch(path.name) or path.is_symlink() or not path.is_file():
                aside.file(path, "it is no client's upload")
            elif self._state.damaged:
                aside.file(path, "nothing that is left of the state refers to it")
            else:
                path.unlink()

    def damaged(self, content: Blob, why: str) -> None:
        """A complete one is not what it was when it came: its file is set aside, and it can be uploaded again.

        Raises:
            OSError
        """
        self._state.set_aside.file(content.path, f"an upload of {content.client!r}: {why}")
        content.complete, content.have, content.digest = False, 0, None

    def _content(self, client: str, sha256: str, nbytes: int, kind: str, signature: bytes) -> Blob:
        return Blob(client, sha256, nbytes, kind, signature, self._state.folder_of(client) / sha256)

    def find(self, client: str, sha256: str) -> Blob | None:
        """Whatever there is of it."""
        known = self._clients.get(client)
        return known.contents.get(sha256) if known is not None else None

    def full(self) -> bool:
        """Whether the disk is."""
        return self._state.reserve.full()

    def complete(self, client: str, sha256: str, kind: str) -> Blob | None:
        found = self.find(client, sha256)
        return found if found is not None and found.complete and found.kind == kind else None

    def used(self, client: str, kind: str) -> int:
        """Bytes that count."""
        known = self._clients.get(client)
        return known.used[kind] if known is not None else 0

    # --- coming and going

    def begin(self, client: str, sha256: str, nbytes: int, kind: str, signature: bytes = b"") -> Blob:
        """A new one, of which nothing is there yet; others that nobody needs may go for it.

        Raises:
            QuotaExceeded, KaasError
        """
        content = self._content(client, sha256, nbytes, kind, signature)
        self.make_room(client, kind, content.counted_bytes, 1)
        with no_paths():
            content.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._state.reserve.full():
            raise KaasError("the server's disk is full")
        self.keep(content)
        self._add(content)
        return content

    def keep(self, content: Blob) -> None:
        """For later lives."""
        kept = KeptBlobs(content.client, content.hash, content.nbytes, content.kind, content.signature)
        self._state.put(KIND, content.client, content.hash, msgspec.msgpack.encode(kept))

    def _add(self, content: Blob) -> None:
        self._clients.setdefault(content.client, _Client()).contents[content.hash] = content
        self._count(content.client, content.kind, content.counted_bytes)

    def touch(self, content: Blob) -> None:
        """It gives way after those that nobody has touched since."""
        contents = self._clients[content.client].contents
        contents[content.hash] = contents.pop(content.hash)

    def remove(self, content: Blob) -> None:
        """Its file first: on a full disk that makes room for the rest. Its entry without a file means nothing."""
        content.gone = True
        del self._clients[content.client].contents[content.hash]
        self._count(content.client, content.kind, -content.counted_bytes)
        with no_paths():
            for path in (content.path, content.part):
                path.unlink(missing_ok=True)
        self._state.remove(KIND, content.client, content.hash)

    def has(self, client: str) -> bool:
        known = self._clients.get(client)
        return known is not None and bool(known.contents)

    def purge(self, client: str) -> None:
        """Remove all that a client has uploaded.

        Raises:
            KaasError
        """
        known = self._clients.get(client)
        for content in list(known.contents.values()) if known is not None else ():
            self.remove(content)

    def release(self, content: Blob) -> bool:
        """It has one use less. True: that was the last one of a value, which is gone."""
        content.uses -= 1
        if content.uses or content.kind != VALUE:
            return False
        self.remove(content)
        return True

    # --- counting

    def charge(self, client: str, kind: str, nbytes: int) -> None:
        """Count bytes that are no uploads.

        Raises:
            QuotaExceeded
        """
        self.make_room(client, kind, nbytes)
        self._clients.setdefault(client, _Client()).extra[kind] += nbytes
        self._count(client, kind, nbytes)

    def refund(self, client: str, kind: str, nbytes: int) -> None:
        self._clients[client].extra[kind] -= nbytes
        self._count(client, kind, -nbytes)

    def _count(self, client: str, kind: str, nbytes: int) -> None:
        used = self._clients[client].used
        used[kind] += nbytes
        self._changed(client, HELD_AS[kind], used[kind])

    def make_room(self, client: str, kind: str, nbytes: int, number: int = 0) -> None:
        """Let so many bytes, and contents, fit: what nobody needs goes, or nothing does if that would not do.

        Raises:
            QuotaExceeded
        """
        known = self._clients.get(client) or _Client()
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
        excess = len(known.contents) - len(going) + number - MOST_CONTENTS
        if excess > 0:
            rest = [each for each in known.contents.values() if each.idle and each not in going]
            if len(rest) < excess:
                raise too_many(client, "contents", MOST_CONTENTS, len(known.contents))
            going += rest[:excess]
        for each in going:
            self.remove(each)


def _first(known: _Client, kind: str, nbytes: int) -> list[Blob]:
    """Those that would give way for so many bytes, or all that could."""
    going: list[Blob] = []
    for each in known.contents.values():
        if nbytes <= 0:
            break
        if each.kind == kind and each.idle:
            going.append(each)
            nbytes -= each.counted_bytes
    return going


def too_many(client: str, what: str, limit: int, used: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"a client has at most {limit} {what} at this server", client=client, quota=what, limit=limit, used=used
    )


class no_paths:  # noqa: N801 - used as a statement
    """What the disk says, as an error that tells a client nothing of the server's folders."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise KaasError(f"the server could not use its disk: {error.strerror}") from None


def _size(path: Path) -> int:
    """-1: there is no such file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


_decode = msgspec.msgpack.Decoder(KeptBlobs).decode
