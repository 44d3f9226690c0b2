"""The pool's clients: device seconds charged to them, kept across restarts, and the sessions that use them."""

from __future__ import annotations

import asyncio
import struct

from kaas.config import ClientSettings
from kaas.scheduling.events import ClientKnown
from kaas.store import ACCOUNTS, Store, decoded

WRITE_EVERY_S = 1.0
"""Charges are written this late. A pool that ends by a crash loses the charges of this time."""


class ClientAccounts:
    """Device seconds by client, in a store. Use an object of this class from one event loop only."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._charged_s: dict[str, float] = decoded(store, ACCOUNTS, lambda value: struct.unpack("<d", value)[0])
        self._unwritten: set[str] = set()

    def charged_s(self) -> dict[str, float]:
        """Return the device seconds of all clients."""
        return dict(self._charged_s)

    def charge(self, client: str, device_s: float) -> None:
        """Add device seconds to a client's account, and write the account within WRITE_EVERY_S."""
        self._charged_s[client] = self._charged_s.get(client, 0.0) + device_s
        if not self._unwritten:
            self._loop.call_later(WRITE_EVERY_S, self.write)
        self._unwritten.add(client)

    def forget(self, client: str) -> None:
        """Remove the account of a client that has gone for good."""
        self._charged_s.pop(client, None)
        self._unwritten.discard(client)
        self._store.remove(ACCOUNTS, [client])

    def write(self) -> None:
        """Write the accounts that have changed."""
        clients, self._unwritten = self._unwritten, set()
        self._store.put(ACCOUNTS, {client: struct.pack("<d", self._charged_s[client]) for client in clients})


def client_known(now_s: float, client: str, settings: ClientSettings | None, charged_s: float | None) -> ClientKnown:
    """Return the event that tells a policy of a client's settings. charged_s: see `ClientKnown`."""
    granted = settings or ClientSettings()
    return ClientKnown(
        now_s, client, granted.weight, granted.priority, granted.max_running, granted.max_share, charged_s
    )


class Sessions:
    """The clients of each session. A session is a process that is attached to the pool, until it ends."""

    def __init__(self) -> None:
        self._clients: dict[str, set[str]] = {}

    def uses(self, session: str, client: str) -> None:
        """Note that a session sent a request for a client. The session "" is ignored."""
        clients = self._clients.get(session)
        if clients is None:
            if not session:
                return
            clients = self._clients[session] = set()
        clients.add(client)

    def __contains__(self, client: str) -> bool:
        """Return True if an open session has sent requests for a client."""
        return any(client in clients for clients in self._clients.values())

    def end(self, session: str) -> tuple[str, ...]:
        """Remove a session. Return the clients for which no other session has sent requests."""
        clients = self._clients.pop(session, set())
        return tuple(sorted(clients.difference(*self._clients.values())))
