"""Named objects of remote clients: in memory that executors read, and on disk for restarts.

A value counts as long as a name or a function's constants refer to it, once for each client.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import mmap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kaas.errors import InvalidRequest, KaasError, UnknownObject, WrongSize
from kaas.ktask.arguments import LIMIT, check_name
from kaas.ktask.dtypes import DTYPE_BYTES
from kaas.pool.on_processes.objects import HeldObject, HeldObjects
from kaas.server.building.uploads import AT_ONCE_BYTES, Uploads, missing
from kaas.server.clients.leaving import LeavingBytes
from kaas.server.state.blob_store import GRAIN_BYTES, VALUE, Blob, no_paths, too_many
from kaas.server.state.state_folder import State, digest_of
from kaas.wire import protocol
from kaas.wire.sent_ktasks import MOST_DIMENSIONS, NAME_BYTES

MOST_NAMES = 4096
"""The most objects of one client."""
KIND = "objects"


class ObjectRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a named object on disk."""

    client: str
    name: str
    hash: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A value with a name. ref: the pool's object."""

    ref: HeldObject
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    content: Blob


@dataclass(frozen=True, slots=True)
class NewObject:
    """A value that gets a name. value: its bytes, or the hash of an upload."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    value: Any

    def check(self) -> None:
        """Check name, dtype and shape.

        Raises:
            InvalidRequest
        """
        _check_name(self.name)
        _bytes_of(self.dtype, self.shape)
        if self.value is None:
            message = f"object {self.name!r} is put by its hash or has its bytes in a frame; here is neither"
            raise InvalidRequest(message)

    def check_size(self, given: int) -> None:
        """Raise if `given` is not the number of bytes of dtype and shape.

        Raises:
            WrongSize
        """
        nbytes = _bytes_of(self.dtype, self.shape)
        if given != nbytes:
            raise WrongSize(
                f"object {self.name!r} of {self.dtype}{list(self.shape)} has {nbytes} bytes, given: {given}",
                buffer=self.name,
                expected_bytes=nbytes,
                given_bytes=given,
            )


class ObjectStore:
    """Named objects; a client is the name of a key. Use an object of this class from one event loop only."""

    def __init__(self, state: State, uploads: Uploads, objects: HeldObjects) -> None:
        self._state = state
        self._uploads = uploads
        self._objects = objects
        self._names: dict[str, dict[str, StoredObject]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def open(self) -> None:
        """Load the objects of earlier epochs. Lost or damaged ones are set aside."""
        for row in self._state.read(KIND, _decode):
            content = self._uploads.blobs.complete(row.client, row.hash, VALUE)
            why = "its value is not there"
            held = None
            if content is not None:
                try:
                    held = await self.held(content)
                    why = "its value is not what was put"
                except KaasError as error:
                    why = error.message
            if held is None or content is None:
                self._state.drop(KIND, row.client, row.name, msgspec.msgpack.encode(row), why)
            else:
                self._name(row, held, content)

    async def held(self, content: Blob, data: memoryview | None = None) -> HeldObject | None:
        """Return a complete value in the pool's memory, or None if its file has changed on disk. data: the value, if
        the caller has it.

        Raises:
            KaasError
        """
        key = _key(content)
        with no_paths():
            if data is None and not self._objects.holds(key):
                data = await asyncio.to_thread(_intact, content.path, content.hash)
                if data is None:
                    self._uploads.blobs.damaged(content, "its bytes have changed on the disk")
                    return None
            return await self._objects.hold(key, data or b"")

    def _name(self, row: ObjectRow, held: HeldObject, content: Blob) -> None:
        content.uses += 1
        stored = StoredObject(held, row.dtype, row.shape, content.nbytes, content)
        self._names.setdefault(row.client, {})[row.name] = stored

    # --- reading

    def named(self, client: str, name: str) -> StoredObject:
        """Return the object of a client with this name.

        Raises:
            UnknownObject
        """
        try:
            return self._names[client][name]
        except KeyError:
            raise UnknownObject(f"this client has put no object {shown(name)} here", object=name[:NAME_BYTES]) from None

    def get(self, client: str, message: protocol.Get) -> tuple[protocol.Value, LeavingBytes]:
        """Return a part of an object, at most CHUNK_BYTES.

        Raises:
            UnknownObject, InvalidRequest
        """
        stored = self.named(client, message.name)
        if not (0 <= message.offset <= stored.nbytes and message.bytes >= 0):
            raise InvalidRequest(f"object {message.name!r} has {stored.nbytes} bytes, and none at {message.offset}")
        end = message.offset + min(message.bytes, protocol.CHUNK_BYTES)
        part = LeavingBytes(self._objects.view(stored.ref)[message.offset : end])
        return protocol.Value(message.number, stored.dtype, stored.shape, stored.nbytes, stored.content.hash), part

    def list(self, client: str, message: protocol.Objects) -> protocol.Listed:
        """Return name, dtype, shape and bytes of each object of a client."""
        entries: list[dict[str, Any]] = [
            {"name": name, "dtype": stored.dtype, "shape": stored.shape, "bytes": stored.nbytes}
            for name, stored in self._names.get(client, {}).items()
        ]
        return protocol.Listed(message.number, entries)

    def view(self, ref: HeldObject) -> memoryview:
        """Return the bytes of a value, readable as long as a reference to it exists."""
        return self._objects.view(ref)

    def stored_bytes(self, client: str) -> int:
        """Return the bytes of a client's values that count for its quota."""
        return self._uploads.blobs.used(client, VALUE)

    def check_room(self, client: str, outputs: Mapping[str, int]) -> None:
        """Raise if outputs do not fit: bytes by name. Unused uploads make room.

        Raises:
            InvalidRequest, QuotaExceeded
        """
        for name in outputs:
            _check_name(name)
        self._check_number(client, outputs)
        counted = sum(max(nbytes, GRAIN_BYTES) for nbytes in outputs.values())
        self._uploads.blobs.make_room(client, VALUE, counted, len(outputs))

    def _check_number(self, client: str, names: Mapping[str, Any]) -> None:
        mine = self._names.get(client, {})
        if len(mine.keys() | names.keys()) > MOST_NAMES:
            raise too_many(client, "objects", MOST_NAMES, len(mine))

    # --- changing

    def turn(self, client: str) -> asyncio.Lock:
        """Return the lock under which a client's changes run one after the other."""
        return self._turns.setdefault(client, asyncio.Lock())

    async def put(self, client: str, message: protocol.Put, frame: bytes | memoryview | None) -> protocol.Done:
        """Give a value a name, instead of another object with this name.

        Raises:
            InvalidRequest, WrongSize, MissingContent, QuotaExceeded, KaasError
        """
        given = NewObject(message.name, message.dtype, message.shape, message.hash or frame)
        await self._uploads.unbroken(self._put(client, [given], {}))
        return protocol.Done(message.number)

    async def store(
        self, client: str, outputs: Sequence[NewObject], entries: Mapping[str, Mapping[str, bytes]]
    ) -> None:
        """Give outputs names, instead of other objects with these names. entries: further entries of the state by kind
        and name, written in the same transaction.

        Raises:
            As `put`; then nothing has changed.
        """
        await self._uploads.unbroken(self._put(client, outputs, entries))

    async def _put(self, client: str, values: Sequence[NewObject], others: Mapping[str, Mapping[str, bytes]]) -> None:
        for given in values:
            given.check()
        async with self.turn(client):
            self._check_number(client, {given.name: given for given in values})
            with ExitStack() as used:  # neither new nor replaced values are evicted meanwhile
                found = []
                for given in values:
                    content, held = await self._found(client, given, used)
                    found.append((ObjectRow(client, given.name, content.hash, given.dtype, given.shape), held, content))
                entries = {row.name: msgspec.msgpack.encode(row) for row, _, _ in found}
                self._state.put_all(client, {KIND: entries, **others})
                for row, held, content in found:
                    before = self._names.get(client, {}).get(row.name)
                    if before is not None:
                        used.callback(self._uploads.blobs.release, before.content)
                    self._name(row, held, content)

    async def _found(self, client: str, given: NewObject, used: ExitStack) -> tuple[Blob, HeldObject]:
        """Return a value on disk and in memory, in use until `used` ends."""
        if isinstance(given.value, str):
            content, data = self._uploaded(client, given.value), None
            given.check_size(content.nbytes)
        else:
            data = memoryview(given.value).cast("B")
            given.check_size(len(data))
            content = await self._uploads.put(client, await _hash(data), VALUE, data)
        content.uses += 1
        used.callback(self._uploads.blobs.release, content)
        held = await self.held(content, data)
        if held is None:
            raise missing(content.hash)
        return content, held

    def _uploaded(self, client: str, sha256: str) -> Blob:
        content = self._uploads.blobs.complete(client, sha256, VALUE)
        if content is None:
            raise missing(sha256)
        return content

    async def delete(self, client: str, message: protocol.Delete) -> protocol.Done:
        """Remove the name of an object. Functions with it as a constant keep its value.

        Raises:
            UnknownObject
        """
        await self._uploads.unbroken(self._delete(client, message.name))
        return protocol.Done(message.number)

    async def _delete(self, client: str, name: str) -> None:
        async with self.turn(client):
            stored = self.named(client, name)
            self._state.remove(KIND, client, name)
            del self._names[client][name]
            self._uploads.blobs.release(stored.content)

    def purge(self, client: str) -> None:
        """Remove all objects of a client. The caller holds its `turn`.

        Raises:
            KaasError
        """
        for name, stored in self._names.pop(client, {}).items():
            self._state.remove(KIND, client, name)
            self._uploads.blobs.release(stored.content)


def _check_name(name: str) -> None:
    try:
        check_name("an object's name", name)
        length = len(name.encode())
    except (KaasError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"an object's name is text without NUL, not {shown(name)}") from error
    if length > NAME_BYTES:
        raise InvalidRequest(f"an object's name has at most {NAME_BYTES} bytes of UTF-8, not {length}")


def shown(name: str) -> str:
    """Return a name for an error's text, shortened if it is too long."""
    return repr(name if len(name) <= NAME_BYTES else name[:NAME_BYTES] + "…")


def _bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of an array.

    Raises:
        InvalidRequest
    """
    if dtype not in DTYPE_BYTES:
        raise InvalidRequest(f"no dtype {shown(dtype)}; known: {', '.join(DTYPE_BYTES)}")
    if len(shape) > MOST_DIMENSIONS or not all(0 <= extent < LIMIT for extent in shape):
        raise InvalidRequest(f"a shape is at most {MOST_DIMENSIONS} non-negative integers below {LIMIT}")
    return math.prod(shape) * DTYPE_BYTES[dtype]


def _key(content: Blob) -> bytes:
    """Return the key of a value in caches. It differs for each client: a shared key would show by its timing that
    another client has the same value."""
    return hashlib.sha256(b"remote/" + digest_of(content.client).encode() + bytes.fromhex(content.hash)).digest()[:28]


async def _hash(data: memoryview) -> str:
    if len(data) <= AT_ONCE_BYTES:
        return hashlib.sha256(data).hexdigest()
    digest = await asyncio.to_thread(hashlib.sha256, data)
    return digest.hexdigest()


def _intact(path: Path, sha256: str) -> memoryview | None:
    """Return the bytes of a file, None if they do not have this hash."""
    with no_paths(), path.open("rb") as file:
        data = (
            memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if path.stat().st_size else memoryview(b"")
        )
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


_decode = msgspec.msgpack.Decoder(ObjectRow).decode
