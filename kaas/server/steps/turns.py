"""Turns of clients at the processes of steps: no client's steps make another client wait for more than one of them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from functools import partial
from typing import Any


class StepTurns:
    """Gives places to the clients that wait. Use it from one event loop only.

    A free place goes to the client that has fewest, and of these to the one that waits longest for its turn. A client
    gets none while a step of a cancelled call of its goes on: to cancel long steps is no way to hold more places.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the client whose turn is next in front
        self._held = Counter[str]()
        self._cancelled = Counter[str]()  # steps of cancelled calls that go on

    async def take(self, client: str) -> None:
        """Wait for a place, and take it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waits_no_more(client, turn)
            else:  # it was cancelled when it had just got the place
                self.leave(client)
            raise

    def leave(self, client: str) -> None:
        """Give a place back."""
        self._free += 1
        self._less(self._held, client)
        self._give()

    def goes_on(self, client: str, step: asyncio.Future[Any]) -> None:
        """Take in that a step goes on in its place though its call is cancelled."""
        self._cancelled[client] += 1
        step.add_done_callback(partial(self._ended, client))

    def _ended(self, client: str, _: asyncio.Future[Any]) -> None:
        self._less(self._cancelled, client)
        self._give()

    def _give(self) -> None:
        while self._free:
            able = [client for client in self._waiting if not self._cancelled[client]]
            if not able:
                return
            client = min(able, key=self._held.__getitem__)
            own = self._waiting.pop(client)
            turn = own.popleft()
            if own:  # others go before its next step
                self._waiting[client] = own
            if not turn.cancelled():
                self._free -= 1
                self._held[client] += 1
                turn.set_result(None)

    def _waits_no_more(self, client: str, turn: asyncio.Future[None]) -> None:
        own = self._waiting.get(client, ())
        if turn in own:  # else its turn has come since, and passed
            self._waiting[client].remove(turn)
            if not own:
                del self._waiting[client]

    @staticmethod
    def _less(counts: Counter[str], client: str) -> None:
        counts[client] -= 1
        if not counts[client]:
            del counts[client]
