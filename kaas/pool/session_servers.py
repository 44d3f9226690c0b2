"""Servers for remote clients in the pool's process. Each server ends with the session that asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kaas.errors import PoolStopped

OPEN_LIMIT_S = 300.0
"""Longest wait of a call for a server to open."""


class OpenServer(Protocol):
    """An open server."""

    @property
    def endpoint(self) -> str:
        """The address of the server."""
        ...

    def drain(self, reason: str) -> None:
        """Refuse further requests, finish the open ones, and end."""
        ...

    def reload(self, settings: Any) -> None:
        """Apply changed settings."""
        ...

    async def left(self) -> None:
        """Wait until the server has drained."""
        ...

    async def close(self) -> None:
        """Close the server."""
        ...


@dataclass(slots=True)
class _SessionServer:
    """A server of a session.

    Fields:
        opened: the server, or the error of its opening. gone: set when its session has ended.
        served: `serve` was called. waiting: number of calls that wait for the server.
    """

    opened: asyncio.Future[OpenServer]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    served: bool = False
    waiting: int = 0


class SessionServers:
    """The servers of sessions. Use an object of this class from one event loop only."""

    def __init__(self) -> None:
        self._entries: dict[str, _SessionServer] = {}

    @property
    def any(self) -> bool:
        """True if a session has a server."""
        return any(entry.served for entry in self._entries.values())

    def serve(self, session: str, opener: Callable[[], Awaitable[OpenServer]]) -> asyncio.Task[None]:
        """Open a server; return a task that lasts until the server's end, and raises the errors of its opening.

        From now on, `end` ends the server.
        """
        entry = self._entry(session)
        entry.served = True
        task = asyncio.get_running_loop().create_task(_serve(entry, opener))
        task.add_done_callback(
            partial(self._ended, session, entry)
        )  # a callback: the task may be cancelled before it begins
        return task

    def _ended(self, session: str, entry: _SessionServer, task: asyncio.Task[None]) -> None:
        del self._entries[session]
        if not entry.opened.done():
            error = PoolStopped("the server was cancelled before it opened") if task.cancelled() else task.exception()
            assert error is not None, "a server opens or raises"
            entry.opened.set_exception(error)
            entry.opened.exception()  # marks the error as retrieved: perhaps no call waits for it

    async def opened(self, session: str) -> OpenServer:
        """Return a session's server; the call may come before `serve`.

        Raises:
            TimeoutError: the server does not open within OPEN_LIMIT_S.
            PoolStopped: the server was cancelled.
            Exception: the error of the server's opening.
        """
        entry = self._entry(session)
        entry.waiting += 1
        try:
            return await asyncio.wait_for(asyncio.shield(entry.opened), OPEN_LIMIT_S)
        finally:
            entry.waiting -= 1
            if not (entry.served or entry.waiting):
                del self._entries[session]

    def end(self, session: str) -> None:
        """End a session's server, if it has one."""
        if session in self._entries:
            self._entries[session].gone.set()

    def _entry(self, session: str) -> _SessionServer:
        if session not in self._entries:
            self._entries[session] = _SessionServer(asyncio.get_running_loop().create_future())
        return self._entries[session]


async def _serve(entry: _SessionServer, opener: Callable[[], Awaitable[OpenServer]]) -> None:
    opened = await opener()
    entry.opened.set_result(opened)
    ends = asyncio.ensure_future(opened.left()), asyncio.ensure_future(entry.gone.wait())
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        await opened.close()
