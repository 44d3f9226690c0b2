"""What clients have had of the devices, kept so that a pool that starts again is as fair as before."""

from __future__ import annotations

import asyncio
import struct

from kaas.config import ClientSettings
from kaas.scheduling.events import ClientKnown
from kaas.store import ACCOUNTS, Store

WRITE_EVERY_S = 1.0
"""How long charges may wait to be written: so much a client may be spared when the pool's process ends."""


class ClientAccounts:
    """Device seconds by client. Belongs to one event loop."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._charged_s = {client: struct.unpack("<d", value)[0] for client, value in store.read(ACCOUNTS).items()}
        self._unwritten: set[str] = set()

    def charged_s(self) -> dict[str, float]:
        return dict(self._charged_s)

    def charge(self, client: str, device_s: float) -> None:
        self._charged_s[client] = self._charged_s.get(client, 0.0) + device_s
        if not self._unwritten:
            self._loop.call_later(WRITE_EVERY_S, self.write)
        self._unwritten.add(client)

    def forget(self, client: str) -> None:
        """It has gone for good."""
        self._charged_s.pop(client, None)
        self._unwritten.discard(client)
        self._store.remove(ACCOUNTS, [client])

    def write(self) -> None:
        clients, self._unwritten = self._unwritten, set()
        self._store.put(ACCOUNTS, {client: struct.pack("<d", self._charged_s[client]) for client in clients})


def client_known(now_s: float, client: str, settings: ClientSettings | None, charged_s: float | None) -> ClientKnown:
    """What a pool says of a client, when it starts or when its configuration changes. charged_s: see `ClientKnown`."""
    granted = settings or ClientSettings()
    return ClientKnown(
        now_s, client, granted.weight, granted.priority, granted.max_running, granted.max_share, charged_s
    )
