"""What else takes requests for a pool, in its process, as long as somebody asks for it: servers of remote clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kaas.errors import PoolStopped

OPEN_LIMIT_S = 300.0
"""How long somebody waits for a front to open."""


class SessionListener(Protocol):
    """It is open."""

    @property
    def endpoint(self) -> str: ...

    def drain(self, reason: str) -> None:
        """Take no more, and end."""
        ...

    def reload(self, settings: Any) -> None:
        """Take what has changed of its configuration."""
        ...

    async def left(self) -> None:
        """Until it has drained."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _OpenListener:
    """opened: the front, or why there is none. gone: nobody asks for it any more. served: it has begun. asking: so many
    wait for it."""

    opened: asyncio.Future[SessionListener]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    served: bool = False
    asking: int = 0


class SessionListeners:
    """By the sessions of those who ask for them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, _OpenListener] = {}

    @property
    def any(self) -> bool:
        """Whether somebody asks for one."""
        return any(entry.served for entry in self._entries.values())

    def serve(self, session: str, opener: Callable[[], Awaitable[SessionListener]]) -> asyncio.Task[None]:
        """From a front's opening to its end; `end` counts from now on. The task raises what opening it does."""
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
            entry.opened.exception()  # whoever asked for it is told here

    async def opened(self, session: str) -> SessionListener:
        """It may be asked for later than this.

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
        """Nobody asks for it any more: it ends as if its process did."""
        if session in self._entries:
            self._entries[session].gone.set()

    def _entry(self, session: str) -> _OpenListener:
        if session not in self._entries:
            self._entries[session] = _OpenListener(asyncio.get_running_loop().create_future())
        return self._entries[session]


async def _live(entry: _OpenListener, opener: Callable[[], Awaitable[SessionListener]]) -> None:
    front = await opener()
    entry.opened.set_result(front)
    ends = asyncio.ensure_future(front.left()), asyncio.ensure_future(entry.gone.wait())
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        await front.close()
