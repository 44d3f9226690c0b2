"""References that programs name in messages outside Ray. Ray carried each of them here once; the pool holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kaas.errors import InvalidRequest
from kaas.pool.on_ray.readiness import Readiness
from kaas.wire.messages import Attachment, Named

HOLD_LIMIT_S = 30.0
"""Longest wait of a request for its objects, which another message brings."""


@dataclass(slots=True)
class _Lease:
    """A held reference. count: number of holds minus drops; negative while a drop has overtaken its hold."""

    ref: Any
    count: int = 0


class SessionRefs:
    """The references of each session. A program gets only objects to which it has a reference of Ray.

    Belongs to one event loop.
    """

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._sessions: dict[str, dict[bytes, _Lease]] = {}
        self._coming: dict[tuple[str, bytes], list[asyncio.Future[None]]] = {}

    def hold(self, session: str, refs: Sequence[Any]) -> None:
        """Hold references for a session. The session must drop a reference as often as it has held it."""
        held = self._sessions.setdefault(session, {})
        for ref in refs:
            key = ref.binary()
            entry = held.setdefault(key, _Lease(ref))
            entry.ref = ref
            self._count(session, key, entry, 1)
            if entry.count <= 0:  # dropped already: a waiting request needs a later hold
                continue
            for wait in self._coming.pop((session, key), []):
                if not wait.done():
                    wait.set_result(None)

    def drop(self, session: str, keys: Iterable[bytes]) -> None:
        """Undo one hold of each of these references."""
        held = self._sessions.setdefault(session, {})
        for key in keys:
            self._count(session, key, held.setdefault(key, _Lease(None)), -1)

    def _holds(self, session: str, key: bytes) -> bool:
        entry = self._sessions.get(session, {}).get(key)
        return entry is not None and entry.count > 0

    def _count(self, session: str, key: bytes, entry: _Lease, by: int) -> None:
        entry.count += by
        if not entry.count:
            del self._sessions[session][key]

    def coming(self, session: str, named: Sequence[Named]) -> Awaitable[None] | None:
        """Return None if a session holds all of these, else a wait for the others; it fails after HOLD_LIMIT_S."""
        missing = [item.key for item in named if not self._holds(session, item.key)]
        if not missing:
            return None
        loop = asyncio.get_running_loop()
        waits: dict[bytes, asyncio.Future[None]] = {key: loop.create_future() for key in missing}
        for key, wait in waits.items():  # at once: the objects may come before the caller awaits
            self._coming.setdefault((session, key), []).append(wait)
        return self._come(session, waits)

    async def _come(self, session: str, waits: dict[bytes, asyncio.Future[None]]) -> None:
        try:
            async with asyncio.timeout(HOLD_LIMIT_S):
                await asyncio.gather(*waits.values())
        except TimeoutError as error:
            raise InvalidRequest("the pool does not hold the objects that a request names") from error
        finally:
            for key, wait in waits.items():
                self._forget(session, key, wait)

    def _forget(self, session: str, key: bytes, wait: asyncio.Future[None]) -> None:
        rest = [other for other in self._coming.get((session, key), []) if other is not wait]
        if rest:
            self._coming[session, key] = rest
        else:
            self._coming.pop((session, key), None)

    def ref(self, session: str, named: Named) -> Any:
        """Return a held reference.

        Raises:
            InvalidRequest: the session does not hold it.
        """
        if not self._holds(session, named.key):
            raise InvalidRequest(f"the pool does not hold object {named.key.hex()} for this program")
        return self._sessions[session][named.key].ref

    def ready(self, refs: Sequence[Any]) -> asyncio.Future[Any] | None:
        """Return None if all objects exist, else a future that ends when they do."""
        return self._readiness.of(refs)

    async def keep(self, session: str, attached: Sequence[Attachment], frames: Sequence[Any]) -> None:  # noqa: ARG002
        """Refuse values.

        Raises:
            InvalidRequest: always, since Ray carries objects.
        """
        raise InvalidRequest("a pool on Ray holds objects of Ray's object store, and no values")

    def session_ended(self, session: str) -> None:
        """Drop all references of a session."""
        self._sessions.pop(session, None)
        for key in [key for key in self._coming if key[0] == session]:
            del self._coming[key]
