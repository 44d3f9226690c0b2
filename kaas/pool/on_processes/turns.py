"""Fair turns at compilers: some clients have one at a time, and the next is for the client that has had the least."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CompilerTurns:
    """The turns of clients, of which a client has one at a time (start-time fair queueing).

    Each turn has a mark: where the client's last one ended, or where the others are now if that is further on. A turn
    moves its client on by its seconds. The lowest mark goes first, and of equal ones the client that came first. So a
    client that takes long waits for those that take little, and no client saves up turns for later.

    Args:
        most: turns at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = 0.0
        self._running: dict[str, float] = {}  # the marks of the turns
        self._ended: dict[str, float] = {}  # where the last turn of a client ended, beyond now
        self.waiting: dict[asyncio.Future[None], str] = {}
        """The clients of those that wait, in the order in which they came."""

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn of a client, and have it."""
        loop = asyncio.get_running_loop()
        given, began_s = loop.create_future(), loop.time()
        self.waiting[given] = client
        self._give()
        try:
            await given
            began_s = loop.time()
            yield
        finally:
            if self.waiting.pop(given, None) is None:
                self._ended[client] = self._running.pop(client) + loop.time() - began_s
            self._give()

    def _give(self) -> None:
        while len(self._running) < self._most:
            first: dict[str, asyncio.Future[None]] = {}
            for given, client in self.waiting.items():
                if client not in self._running and not given.done():
                    first.setdefault(client, given)
            if not first:
                return
            client = min(first, key=self._mark)
            self._running[client] = self._now = self._mark(client)
            self._ended = {name: mark for name, mark in self._ended.items() if mark > self._now}
            del self.waiting[first[client]]
            first[client].set_result(None)

    def _mark(self, client: str) -> float:
        return max(self._now, self._ended.get(client, 0.0))
