"""Objects that a pool without Ray holds: values of its programs, in memory that executors can read."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from kaas.errors import InvalidRequest
from kaas.wire.connections.shared_memory import BlockLease, Inbox, Outbox
from kaas.wire.messages import Attachment, Block, Framed, Named

AT_ONCE_BYTES = 1 << 20
"""The event loop itself copies values up to this size; a thread copies larger values."""


class KeepObjects(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a PoolQuery "hold": keys, each with an attached value, or its name if the pool holds it.

    Fields:
        together: a key for all of them as one object (the constants of a function), which the program then holds. None:
            the program holds each of them.
    """

    keys: Sequence[bytes]
    together: bytes | None = None


encode_keep = msgspec.msgpack.encode
decode_keep = msgspec.msgpack.Decoder(KeepObjects).decode


def key_of(content: bytes | memoryview) -> bytes:
    """Return the key of a value: 28 bytes, as long as Ray's names of objects."""
    return hashlib.sha256(content).digest()[:28]


def key_of_all(keys: Sequence[bytes]) -> bytes:
    """Return the key of several objects as one. It differs from the key of one value that consists of these keys."""
    return hashlib.sha256(b"".join(keys)).digest()[-28:]


class _Copied:
    """Values that arrived together are in one piece of memory, which is released once no object needs any of them."""

    __slots__ = ("_lease", "blocks")

    def __init__(self, lease: BlockLease) -> None:
        self._lease = lease
        self.blocks = lease.blocks

    def __del__(self) -> None:
        self._lease.release()


class HeldObject:
    """A held object. It exists as long as a program that put it, a request or a pin refers to it."""

    __slots__ = ("__weakref__", "_key", "_owners", "blocks")

    def __init__(self, key: bytes, blocks: Sequence[Block], owners: Sequence[_Copied | HeldObject]) -> None:
        """Make an object. blocks: its value, or the values of its parts; they exist as long as the owners."""
        self._key = key
        self._owners = owners
        self.blocks = blocks

    def binary(self) -> bytes:
        """Return the key."""
        return self._key

    @property
    def constants_bytes(self) -> int:
        """Bytes of the constants of a function; 0 for any other object."""
        together = self._owners and isinstance(self._owners[0], HeldObject)
        return sum(block.nbytes for block in self.blocks) if together else 0


class HeldObjects:
    """All held objects, by content: equal values of two programs are one object. Belongs to one event loop."""

    def __init__(self, inbox: Inbox, expect: Callable[[HeldObject], None] = lambda _: None) -> None:
        """
        Args:
            inbox: of the router, which forgets the memory of programs that have ended. expect: called with constants of
                a function that is registered.
        """
        self._outbox = Outbox()
        self._expect = expect
        self._inbox = inbox
        self._known: WeakValueDictionary[bytes, HeldObject] = WeakValueDictionary()
        self._sessions: dict[str, dict[bytes, list[HeldObject]]] = {}

    def ref(self, session: str, named: Named) -> HeldObject:  # noqa: ARG002 - all programs are of one user
        """Return a held object.

        Raises:
            InvalidRequest: no program holds it.
        """
        held = self._known.get(named.key)
        if held is None:
            raise _unknown(named.key)
        return held

    def coming(self, session: str, named: Sequence[Named]) -> None:
        """Return None: no object is still to come."""

    def ready(self, refs: Sequence[Any]) -> None:
        """Return None: held objects exist."""

    async def keep(self, session: str, attached: Sequence[Attachment], frames: Sequence[Any]) -> None:
        """Hold objects for a session. The session must drop an object as often as it has held it.

        Raises:
            InvalidRequest: no program holds a named object. OSError: a program's memory is gone.
        """
        wanted = decode_keep(frames[0])
        found = {key: held for key in wanted.keys if (held := self._known.get(key)) is not None}
        values: dict[bytes, Framed | Block] = {}
        for key, item in zip(wanted.keys, attached, strict=True):
            if key in found:
                continue
            if isinstance(item, Named):
                raise _unknown(key)
            values[key] = item
        found |= await self._copied(values, frames)
        parts = [found[key] for key in wanted.keys]
        if wanted.together is not None:
            parts = [self._joined(wanted.together, parts)]
        mine = self._sessions.setdefault(session, {})
        for held in parts:
            mine.setdefault(held.binary(), []).append(held)

    async def _copied(self, values: Mapping[bytes, Framed | Block], frames: Sequence[Any]) -> dict[bytes, HeldObject]:
        if not values:
            return {}
        data = [
            frames[item.frame - 1] if isinstance(item, Framed) else self._inbox.view(item) for item in values.values()
        ]
        if sum(map(len, data)) <= AT_ONCE_BYTES:
            copied = self._copy(data)
        else:
            copied = await asyncio.to_thread(self._copy, data)
        return {
            key: self._known.setdefault(key, HeldObject(key, [block], [copied]))
            for key, block in zip(values, copied.blocks, strict=True)
        }

    def _copy(self, data: Sequence[Any]) -> _Copied:
        """Return a copy of values, which releases its memory also if no task waits for this thread any more."""
        return _Copied(self._outbox.put_all(data))

    def holds(self, key: bytes) -> bool:
        """Return True if there is an object with this key."""
        return key in self._known

    async def hold(self, key: bytes, data: bytes | memoryview) -> HeldObject:
        """Return the object with this key, or make it of a copy of data. It exists while the caller refers to it."""
        known = self._known.get(key)
        if known is not None:
            return known
        if len(data) <= AT_ONCE_BYTES:
            copied = self._copy([data])
        else:
            copied = await asyncio.to_thread(self._copy, [data])
        return self._known.setdefault(key, HeldObject(key, copied.blocks, [copied]))

    def together(self, parts: Sequence[HeldObject]) -> HeldObject:
        """Return several objects as one: the constants of a function."""
        return self._joined(key_of_all([part.binary() for part in parts]), parts)

    def _joined(self, key: bytes, parts: Sequence[HeldObject]) -> HeldObject:
        made = HeldObject(key, [block for part in parts for block in part.blocks], parts)
        constants = self._known.setdefault(key, made)
        self._expect(constants)
        return constants

    def view(self, held: HeldObject) -> memoryview:
        """Return the value of an object of one part, readable for as long as the object exists."""
        (block,) = held.blocks
        return self._inbox.view(block)

    def drop(self, session: str, keys: Iterable[bytes]) -> None:
        """Undo one `keep` of each of these objects."""
        mine = self._sessions.get(session, {})
        for key in keys:
            held = mine.get(key)
            if held is not None:
                held.pop()
                if not held:
                    del mine[key]

    def session_ended(self, session: str) -> None:
        """Drop all objects of a session."""
        self._sessions.pop(session, None)

    def close(self) -> None:
        """Release the memory of all objects without references, and of the others when their last reference goes."""
        self._sessions.clear()
        self._outbox.close()


def _unknown(key: bytes) -> InvalidRequest:
    return InvalidRequest(f"the pool holds no object {key.hex()}: put it there again, or register its function again")
