"""Servers of remote clients in the pool's process, each for as long as the session that asks for it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kaas.errors import PoolStopped

OPEN_LIMIT_S = 300.0
"""How long a call waits for a server to open."""


class SessionListener(Protocol):
    """An open server."""

    @property
    def endpoint(self) -> str: ...

    def drain(self, reason: str) -> None:
        """Take no more requests, and end."""
        ...

    def reload(self, settings: Any) -> None:
        """Take changed settings."""
        ...

    async def left(self) -> None:
        """Wait until the server has drained."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _OpenListener:
    """A server of a session.

    Fields:
        opened: the server, or why there is none. gone: no session asks for it any more. served: it has begun. asking:
        how
            many calls wait for it.
    """

    opened: asyncio.Future[SessionListener]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    served: bool = False
    asking: int = 0


class SessionListeners:
    """The servers, by the sessions that ask for them. Use an object of this class from one event loop only."""

    def __init__(self) -> None:
        self._entries: dict[str, _OpenListener] = {}

    @property
    def any(self) -> bool:
        """True if a session asks for a server."""
        return any(entry.served for entry in self._entries.values())

    def serve(self, session: str, opener: Callable[[], Awaitable[SessionListener]]) -> asyncio.Task[None]:
        """Return a task from a server's opening to its end; it raises what the opening raises.

        `end` counts from now on.
        """
        entry = self._entry(session)
        entry.served = True
        task = asyncio.get_running_loop().create_task(_live(entry, opener))
        task.add_done_callback(partial(self._ended, session, entry))  # it may be cancelled before it begins
        return task

    def _ended(self, session: str, entry: _OpenListener, task: asyncio.Task[None]) -> None:
        del self._entries[session]
        if not entry.opened.done():
            error = PoolStopped("it was given up before it opened") if task.cancelled() else task.exception()
            assert error is not None, "it opens or raises"
            entry.opened.set_exception(error)
            entry.opened.exception()  # the calls that wait for it get it here

    async def opened(self, session: str) -> SessionListener:
        """Return a session's server; the call may come before `serve`.

        Raises:
            TimeoutError; PoolStopped; what opening it raises.
        """
        entry = self._entry(session)
        entry.asking += 1
        try:
            return await asyncio.wait_for(asyncio.shield(entry.opened), OPEN_LIMIT_S)
        finally:
            entry.asking -= 1
            if not (entry.served or entry.asking):
                del self._entries[session]

    def end(self, session: str) -> None:
        """End a session's server as if its process had ended."""
        if session in self._entries:
            self._entries[session].gone.set()

    def _entry(self, session: str) -> _OpenListener:
        if session not in self._entries:
            self._entries[session] = _OpenListener(asyncio.get_running_loop().create_future())
        return self._entries[session]


async def _live(entry: _OpenListener, opener: Callable[[], Awaitable[SessionListener]]) -> None:
    opened = await opener()
    entry.opened.set_result(opened)
    ends = asyncio.ensure_future(opened.left()), asyncio.ensure_future(entry.gone.wait())
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        await opened.close()
