"""Uploads of remote clients, in chunks. An upload can be resumed after a lost connection or a restart."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from kaas.errors import InvalidRequest, MissingContent, QueueFull, StateUnavailable, WrongContent
from kaas.ktask.library import Library
from kaas.server.clients.allow import HASH, Allowed
from kaas.server.state.blob_store import KINDS, LIBRARY, Blob, BlobStore, Changed, LimitsOf, no_paths
from kaas.server.state.reserve import is_full
from kaas.server.state.state_folder import State
from kaas.wire import protocol
from kaas.wire.sent_ktasks import decode_images
from kaas.wire.signing import SIGNATURE_BYTES

AT_ONCE_BYTES = 64 << 10
"""The event loop itself writes chunks of up to so many bytes."""
MOST_WAITING = 32
"""The most chunks of one client that wait to be written."""
MOST_BYTES = 1 << 40
"""The most bytes of one upload, with any quota."""
_READ_BYTES = 1 << 20

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Uploads:
    """All uploads; a client is the name of a key. Use an object of this class from one event loop only.

    Fields:
        blobs: complete and incomplete uploads. allowed: the allowed code. limits: returns the limits of a client.
    """

    def __init__(self, state: State, limits: LimitsOf, allowed: Allowed, changed: Changed) -> None:
        """changed: see `BlobStore`."""
        self.blobs = BlobStore(state, limits, changed)
        self.allowed = allowed
        self.limits = limits
        self._waiting: Counter[str] = Counter()
        self._writing: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Load the uploads of earlier epochs."""
        self.blobs.open()

    # --- in chunks

    async def offer(self, client: str, message: protocol.Upload) -> protocol.Uploaded:
        """Begin or resume an upload. The reply has the number of bytes that the server has of it.

        Raises:
            InvalidRequest, QuotaExceeded, NotAllowed
        """
        if not HASH.fullmatch(message.hash):
            raise InvalidRequest(f"a hash is 64 hex digits in lower case, not {message.hash!r}")
        if message.kind not in KINDS or not 0 < message.bytes <= MOST_BYTES:
            raise InvalidRequest(
                f"an upload is one of {', '.join(KINDS)} and has 1 to {MOST_BYTES} bytes, "
                f"not {message.kind!r} of {message.bytes}"
            )
        if len(message.signature) > SIGNATURE_BYTES:  # it is stored, but not counted
            raise InvalidRequest(f"a signature has {SIGNATURE_BYTES} bytes, not {len(message.signature)}")
        content = self.blobs.find(client, message.hash)
        if content is not None and not content.complete and content.idle and content.nbytes != message.bytes:
            self.blobs.remove(content)  # its announced size was wrong; the new one will be checked as well
            content = None
        if content is None:
            content = self.blobs.begin(client, message.hash, message.bytes, message.kind, message.signature)
        elif (content.kind, content.nbytes) != (message.kind, message.bytes):
            raise InvalidRequest(
                f"upload {message.hash} has begun as {content.kind!r} of {content.nbytes} bytes, "
                f"not as {message.kind!r} of {message.bytes}"
            )
        self.blobs.touch(content)
        if message.signature not in (b"", content.signature):
            content.signature = message.signature
            self.blobs.keep(content)
        return protocol.Uploaded(message.number, content.have)

    async def chunk(self, client: str, message: protocol.Chunk, frame: bytes | memoryview) -> protocol.Uploaded:
        """Write a chunk. Chunks are written in order; one that does not continue the upload changes nothing.

        Raises:
            MissingContent: there is no such upload, or it was removed to make room.
            InvalidRequest: it would be longer than announced.
            WrongContent, CorruptImage, NotAllowed: it is complete but wrong, and was removed.
            QueueFull
        """
        content = self.blobs.find(client, message.hash)
        if content is None:
            raise missing(message.hash)
        if self._waiting[client] >= MOST_WAITING:
            raise QueueFull(
                f"{MOST_WAITING} chunks of {client!r} wait already",
                client=client,
                limit=MOST_WAITING,
                queued=MOST_WAITING,
            )
        self._waiting[client] += 1
        try:
            # a cancelled caller does not undo the write
            return await self.unbroken(self._take(content, message, memoryview(frame)))
        finally:
            self._waiting[client] -= 1

    async def unbroken(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return await asyncio.shield(task)

    async def _take(self, content: Blob, message: protocol.Chunk, data: memoryview) -> protocol.Uploaded:
        async with content.turn:
            if content.gone:
                raise missing(content.hash)
            if data and message.offset == content.have:
                if content.have + len(data) > content.nbytes:
                    raise InvalidRequest(
                        f"upload {content.hash} has {content.nbytes} bytes: {len(data)} at {message.offset} go beyond"
                    )
                await self._append(content, data)
                self.blobs.touch(content)
            return protocol.Uploaded(message.number, content.have)

    async def _append(self, content: Blob, data: memoryview) -> None:
        at_once = len(data) <= AT_ONCE_BYTES and content.nbytes <= AT_ONCE_BYTES
        if self.blobs.full():
            self.blobs.remove(content)
            raise StateUnavailable("the server's disk is full")
        try:
            if at_once:
                _write(content, data)
            else:
                await asyncio.to_thread(_write, content, data)
        except OSError as error:
            if is_full(error):  # its bytes would keep other uploads and its own repeat from being written
                _log.error("the disk is full: an upload is given up", extra={"client": content.client})
                self.blobs.remove(content)
            with no_paths():
                raise
        content.have += len(data)
        if content.have < content.nbytes:
            return
        try:
            if at_once:
                self._finish(content)
            else:
                await asyncio.to_thread(self._finish, content)
        except BaseException:
            self.blobs.remove(content)
            raise
        content.complete, content.digest = True, None

    def _finish(self, content: Blob) -> None:
        """Check a complete upload and give its file the final name.

        Raises:
            WrongContent, CorruptImage, NotAllowed, KaasError
        """
        found = content.digest.hexdigest()
        if found != content.hash:
            raise WrongContent(
                f"upload {content.hash} turned out to be {found}: send it again", hash=content.hash, found=found
            )
        with no_paths():
            if content.kind == LIBRARY:
                self._library(content, content.part.read_bytes())
            os.replace(content.part, content.path)

    # --- whole

    async def put(self, client: str, sha256: str, kind: str, data: memoryview) -> Blob:
        """Store a value that came in one piece. Return its upload, which may have been there already. sha256: its hash.

        Raises:
            InvalidRequest, QuotaExceeded, KaasError
        """
        content = self.blobs.find(client, sha256) or self.blobs.begin(client, sha256, len(data), kind)
        if (content.kind, content.nbytes) != (kind, len(data)):
            raise InvalidRequest(f"upload {sha256} has begun as {content.kind!r} of {content.nbytes} bytes")
        async with content.turn:
            if content.gone:
                raise missing(sha256)
            if not content.complete:
                await self._append(content, data[content.have :])
            return content

    async def library(self, client: str, sha256: str) -> Library:
        """Return a library that a client has uploaded, if it is allowed now.

        Raises:
            MissingContent, NotAllowed, CorruptImage, KaasError
        """
        content = self.blobs.complete(client, sha256, LIBRARY)
        if content is None:
            raise missing(sha256)
        async with content.turn:  # it is not removed meanwhile
            if not content.complete:
                raise missing(sha256)
            try:
                return await asyncio.to_thread(self._intact_library, content)
            except WrongContent as error:
                with no_paths():
                    self.blobs.damaged(content, error.message)
                raise

    def _intact_library(self, content: Blob) -> Library:
        with no_paths():
            data = content.path.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != content.hash:
            raise WrongContent(
                f"library {content.hash} was damaged on the server's disk: send it again",
                hash=content.hash,
                found=found,
            )
        return self._library(content, data)

    def _library(self, content: Blob, data: bytes) -> Library:
        """Return the library of uploaded bytes.

        Raises:
            NotAllowed, CorruptImage
        """
        images = decode_images(data)
        self.allowed.check_library(content.hash, images)  # before any other code reads it
        return Library(images)


def missing(*hashes: str) -> MissingContent:
    """Return the error for uploads that are missing or incomplete."""
    return MissingContent(f"this client has not uploaded {', '.join(hashes)}, or not all of it", hashes=hashes)


def _write(content: Blob, data: memoryview) -> None:
    if content.digest is None:
        content.digest = _digest(content)
    file = os.open(content.part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(file, data[written:], content.have + written)
    except OSError:
        os.ftruncate(file, content.have)
        raise
    finally:
        os.close(file)
    content.digest.update(data)


def _digest(content: Blob) -> Any:
    """Return the hash of the bytes that an earlier epoch has left."""
    digest = hashlib.sha256()
    left = content.have
    if left:
        with content.part.open("rb") as file:
            while left and (data := file.read(min(_READ_BYTES, left))):
                digest.update(data)
                left -= len(data)
    return digest
