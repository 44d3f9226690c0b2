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
        self._queued: dict[str, int] = {}  # of those that have a limit
        self._total = 0

    def admit(self, client: str) -> None:
        """Queue one more of a client.

        Raises:
            QueueFull: it is too many.
        """
        if self._total >= self._limit:
            message = f"the pool queues {self._limit} requests at most, and {self._total} wait already"
            raise QueueFull(message, limit=self._limit, queued=self._total)
        limit = self._limits.get(client)
        if limit is not None and (queued := self._queued.get(client, 0)) >= limit:
            message = f"client {client!r} may have {limit} requests queued, and {queued} wait already"
            raise QueueFull(message, client=client, limit=limit, queued=queued)
        self.enter(client)

    def enter(self, client: str) -> None:
        """One of its requests is queued, whatever the limits: one whose worker ended finds room in any case."""
        self._total += 1
        if client in self._limits:
            self._queued[client] = self._queued.get(client, 0) + 1

    def leave(self, client: str) -> None:
        self._total -= 1
        if client in self._limits:
            self._queued[client] -= 1
            if not self._queued[client]:
                del self._queued[client]
