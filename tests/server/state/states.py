"""Data of remote clients without a server: uploads, objects and functions in a folder of the test."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kaas
from kaas.pool.functions import Registry
from kaas.pool.on_processes.objects import HeldObjects
from kaas.server.building.uploads import Uploads
from kaas.server.clients.allow import Allowed
from kaas.server.state.client_functions import ClientFunctions
from kaas.server.state.object_store import ObjectStore
from kaas.server.state.state_folder import State
from kaas.server.usage.quotas import Quotas
from kaas.store import SqliteStore
from kaas.wire import protocol
from kaas.wire.connections.shared_memory import Inbox
from kaas.wire.sent_ktasks import encode_library, encode_task

ANY = Allowed(any=True)


@dataclass
class Had:
    """One run of a server: `async with Had(folder) as had`. held: the reported bytes of each client."""

    folder: Path
    quotas: Mapping[str, Quotas] = field(default_factory=dict)
    allowed: Allowed = ANY
    steps: frozenset[str] = frozenset()
    held: dict[tuple[str, str], int] = field(default_factory=dict)

    async def __aenter__(self) -> Had:
        self.state = State(self.folder)
        self.state.open()
        self.objects = HeldObjects(Inbox())
        store = SqliteStore(":memory:")
        store.open()
        self.registry = Registry(store)
        self.uploads = Uploads(self.state, lambda client: self.quotas.get(client, Quotas()), self.allowed, self._held)
        self.values = ObjectStore(self.state, self.uploads, self.objects)
        self.functions = ClientFunctions(
            self.state, self.uploads, self.values, self.objects, self.registry, steps=self.steps
        )
        await self.uploads.open()
        await self.values.open()
        await self.functions.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.state.close()
        self.objects.close()

    def _held(self, client: str, what: str, nbytes: int) -> None:
        self.held[client, what] = nbytes

    async def upload(
        self, client: str, data: bytes, kind: str = "value", signature: bytes = b"", size: int = 1 << 16
    ) -> str:
        """All of it, in chunks; its hash."""
        sha256 = hash_of(data)
        offer = protocol.Upload(1, sha256, len(data), kind, signature)
        offset = (await self.uploads.offer(client, offer)).offset
        while offset < len(data):
            answer = await self.uploads.chunk(client, protocol.Chunk(2, sha256, offset), data[offset : offset + size])
            offset = answer.offset
        return sha256

    async def register(
        self, client: str, task: kaas.KTask, name: str = "", constants: dict[str, str] | None = None, **more: Any
    ) -> protocol.Registered:
        """With its libraries."""
        for library in task.libraries:
            await self.upload(client, encode_library(library), "library")
        message = protocol.Register(3, name, constants or {}, **more)
        return await self.functions.register(client, message, encode_task(task))

    async def put(self, client: str, name: str, array: Any) -> None:
        message = protocol.Put(4, name, array.dtype.name, array.shape)
        assert await self.values.put(client, message, array.tobytes()) == protocol.Done(4)

    async def get(self, client: str, name: str) -> bytes:
        """All of it, in parts."""
        data, nbytes = b"", -1
        while len(data) != nbytes:
            value, part = self.values.get(client, protocol.Get(5, name, len(data)))
            data, nbytes = data + part, value.bytes
        return data


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
