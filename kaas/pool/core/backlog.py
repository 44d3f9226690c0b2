"""How many requests are queued, in all and of each client, and whether there is room for one more."""

from __future__ import annotations

from collections.abc import Mapping

from kaas.config import ClientSettings
from kaas.errors import QueueFull


class Backlog:
    """limit: of all clients together. clients: what is granted to some of them."""

    def __init__(self, limit: int, clients: Mapping[str, ClientSettings]) -> None:
        self._limit = limit
        self._limits = {name: granted.max_queued for name, granted in clients.items() if granted.max_queued is not None}
        self._queued: dict[str, int] = {}
        self._total = 0

    def regrant(self, clients: Mapping[str, ClientSettings]) -> None:
        """What is granted from now on; what is queued stays."""
        self._limits = {name: granted.max_queued for name, granted in clients.items() if granted.max_queued is not None}

    def enter(self, client: str, *, again: bool = False) -> None:
        """One more of a client is queued; again: one whose worker ended, which finds room in any case.

        Raises:
            QueueFull: it is too many.
        """
        if self._total >= self._limit and not again:
            message = f"the pool queues {self._limit} requests at most, and {self._total} wait already"
            raise QueueFull(message, limit=self._limit, queued=self._total)
        limit, queued = self._limits.get(client), self._queued.get(client, 0)
        if limit is not None and queued >= limit and not again:
            message = f"client {client!r} may have {limit} requests queued, and {queued} wait already"
            raise QueueFull(message, client=client, limit=limit, queued=queued)
        self._queued[client] = queued + 1
        self._total += 1

    def leave(self, client: str) -> None:
        self._total -= 1
        self._queued[client] -= 1
        if not self._queued[client]:
            del self._queued[client]
