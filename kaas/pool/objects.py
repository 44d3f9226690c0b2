"""Objects that a pool without Ray holds itself: what its programs put there, in memory that executors can read."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from kaas.errors import InvalidRequest
from kaas.pool.blocks import Inbox, Lease, Outbox
from kaas.pool.messages import Beside, Block, Framed, Named

AT_ONCE_BYTES = 1 << 20
"""Values up to this size are copied by the event loop itself."""


class Keep(msgspec.Struct, frozen=True, array_like=True):
    """What a program has the pool hold: in an Ask "hold" this is the first frame, with a value beside it for each key,
    or its name if the pool holds it already. together: a key for all of them as one object, the constants of a
    function, which then is what the program holds; None: it holds each."""

    keys: Sequence[bytes]
    together: bytes | None = None


encode_keep = msgspec.msgpack.encode
decode_keep = msgspec.msgpack.Decoder(Keep).decode


def key_of(content: bytes | memoryview) -> bytes:
    """28 bytes, as Ray's names of objects."""
    return hashlib.sha256(content).digest()[:28]


class Held:
    """An object, as long as somebody refers to this: a program that put it there, a request, a pin."""

    __slots__ = ("__weakref__", "_key", "_lease", "_parts")

    def __init__(self, key: bytes, lease: Lease | None, parts: Sequence[Held] = ()) -> None:
        self._key = key
        self._lease = lease
        self._parts = parts

    def binary(self) -> bytes:
        return self._key

    @property
    def blocks(self) -> list[Block]:
        """Its value, or those of its parts."""
        if self._lease is not None:
            return [self._lease.block]
        return [block for part in self._parts for block in part.blocks]

    def __del__(self) -> None:
        if self._lease is not None:
            self._lease.release()


class HeldObjects:
    """Belongs to one event loop. Keys name contents: what two programs put there is there once."""

    def __init__(self) -> None:
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._known: WeakValueDictionary[bytes, Held] = WeakValueDictionary()
        self._sessions: dict[str, dict[bytes, list[Held]]] = {}

    def ref(self, session: str, named: Named) -> Held:  # noqa: ARG002 - all programs are of one user
        """
        Raises:
            InvalidRequest: nobody holds it.
        """
        held = self._known.get(named.key)
        if held is None:
            raise InvalidRequest(f"the pool holds no object {named.key.hex()}")
        return held

    def coming(self, session: str, named: Sequence[Named]) -> None:  # noqa: ARG002 - what is named is held
        return None

    def ready(self, refs: Sequence[Any]) -> None:  # noqa: ARG002 - what is held exists
        return None

    async def keep(self, session: str, beside: Sequence[Beside], frames: Sequence[Any]) -> None:
        """Hold objects for a session, which has to drop them as often as it has held them.

        Raises:
            InvalidRequest, OSError
        """
        wanted = decode_keep(frames[0])
        parts = [await self._kept(session, key, item, frames) for key, item in zip(wanted.keys, beside, strict=True)]
        if wanted.together is not None:
            held = self._known.setdefault(wanted.together, Held(wanted.together, None, parts))
            parts = [held]
        mine = self._sessions.setdefault(session, {})
        for held in parts:
            mine.setdefault(held.binary(), []).append(held)

    async def _kept(self, session: str, key: bytes, item: Beside, frames: Sequence[Any]) -> Held:
        if isinstance(item, Named):
            return self.ref(session, Named(key))
        known = self._known.get(key)
        if known is not None:
            return known
        value = memoryview(frames[item.frame - 1]) if isinstance(item, Framed) else self._inbox.view(item)
        if value.nbytes <= AT_ONCE_BYTES:
            lease = self._outbox.put(value)
        else:
            lease = await asyncio.to_thread(self._outbox.put, value)
        return self._known.setdefault(key, Held(key, lease))

    def drop(self, session: str, keys: Iterable[bytes]) -> None:
        mine = self._sessions.get(session, {})
        for key in keys:
            held = mine.get(key)
            if held is not None:
                held.pop()
                if not held:
                    del mine[key]

    def session_ended(self, session: str) -> None:
        self._sessions.pop(session, None)
