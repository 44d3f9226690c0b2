"""References that programs name in messages outside Ray: it brought them here once, and the pool holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kaas.errors import InvalidRequest
from kaas.pool.messages import Beside, Named
from kaas.pool.readiness import Readiness


@dataclass(slots=True)
class _Entry:
    """count: how often it was held and not dropped. A drop may overtake what it takes back: then it is negative."""

    ref: Any
    count: int = 0


class HeldRefs:
    """Each session's own: who cannot name an object to Ray cannot have it here. Belongs to one event loop."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._sessions: dict[str, dict[bytes, _Entry]] = {}

    def hold(self, session: str, refs: Sequence[Any]) -> None:
        """A session is going to name these; once more, and it has to drop them once more."""
        held = self._sessions.setdefault(session, {})
        for ref in refs:
            key = ref.binary()
            entry = held.setdefault(key, _Entry(ref))
            entry.ref = ref
            self._count(session, key, entry, 1)

    def drop(self, session: str, keys: Iterable[bytes]) -> None:
        held = self._sessions.setdefault(session, {})
        for key in keys:
            self._count(session, key, held.setdefault(key, _Entry(None)), -1)

    def _count(self, session: str, key: bytes, entry: _Entry, by: int) -> None:
        entry.count += by
        if not entry.count:
            del self._sessions[session][key]

    def ref(self, session: str, named: Named) -> Any:
        """
        Raises:
            InvalidRequest: the session does not hold it.
        """
        entry = self._sessions.get(session, {}).get(named.key)
        if entry is None or entry.ref is None:
            raise InvalidRequest(f"the pool does not hold object {named.key.hex()} for this program")
        return entry.ref

    def ready(self, refs: Sequence[Any]) -> asyncio.Future[Any] | None:
        """None if all exist, else what is done when they do."""
        return self._readiness.of(refs)

    async def keep(self, session: str, beside: Sequence[Beside], frames: Sequence[Any]) -> None:  # noqa: ARG002
        """
        Raises:
            InvalidRequest: objects come by Ray.
        """
        raise InvalidRequest("a pool on Ray holds what Ray's object store has, and no values")

    def session_ended(self, session: str) -> None:
        self._sessions.pop(session, None)
