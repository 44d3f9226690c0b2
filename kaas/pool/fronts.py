"""What else takes requests for a pool, in its process, as long as somebody asks for it: servers of remote clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

OPEN_LIMIT_S = 300.0
"""How long somebody waits for a front to open."""


class Front(Protocol):
    """It is open."""

    @property
    def endpoint(self) -> str: ...

    def drain(self, reason: str) -> None:
        """Take no more, and end."""
        ...

    async def left(self) -> None:
        """Until it has drained."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """opened: the front, or why there is none. gone: nobody asks for it any more."""

    opened: asyncio.Future[Front]
    gone: asyncio.Event


class Fronts:
    """By the sessions of those who ask for them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def serve(self, session: str, opening: Awaitable[Front]) -> asyncio.Task[None]:
        """From a front's opening to its end; `end` counts from now on. The task raises what opening it does."""
        return asyncio.get_running_loop().create_task(self._live(session, self._entry(session), opening))

    async def _live(self, session: str, entry: _Entry, opening: Awaitable[Front]) -> None:
        try:
            front = await opening
        except BaseException as error:
            entry.opened.set_exception(error)
            entry.opened.exception()  # whoever asked for it is told here
            raise
        else:
            entry.opened.set_result(front)
            await self._serve(entry, front)
        finally:
            del self._entries[session]

    async def _serve(self, entry: _Entry, front: Front) -> None:
        ends = asyncio.ensure_future(front.left()), asyncio.ensure_future(entry.gone.wait())
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await front.close()

    async def opened(self, session: str) -> Front:
        """It may be asked for later than this.

        Raises:
            TimeoutError; what opening it raises.
        """
        return await asyncio.wait_for(asyncio.shield(self._entry(session).opened), OPEN_LIMIT_S)

    def end(self, session: str) -> None:
        """Nobody asks for it any more: it ends as if its process did."""
        if session in self._entries:
            self._entries[session].gone.set()

    def _entry(self, session: str) -> _Entry:
        if session not in self._entries:
            self._entries[session] = _Entry(asyncio.get_running_loop().create_future(), asyncio.Event())
        return self._entries[session]
