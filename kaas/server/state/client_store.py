"""The data of remote clients at a server: uploaded code and values, functions, named objects, durable replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

from kaas.errors import InvalidRequest
from kaas.pool.functions import Registry
from kaas.pool.on_processes.objects import HeldObjects
from kaas.server.building.served import NONE_SERVED, ServedETasks
from kaas.server.building.uploads import Uploads
from kaas.server.clients.allow import Allowed
from kaas.server.clients.tenants import Tenants
from kaas.server.state.client_functions import ClientFunctions
from kaas.server.state.durable_replies import DurableReplies
from kaas.server.state.object_store import ObjectStore
from kaas.server.state.reserve import Reserve
from kaas.server.state.state_folder import State
from kaas.wire import protocol

StoreMessage = (
    protocol.Upload
    | protocol.Chunk
    | protocol.Register
    | protocol.Functions
    | protocol.Unregister
    | protocol.Put
    | protocol.Get
    | protocol.Delete
    | protocol.Objects
)
"""Messages about a client's data."""
StoreReply = tuple[protocol.FromServer, Sequence[Any]]
"""The header and the frames of a reply."""


class ClientStore:
    """All data of all clients. Use an object of this class from the pool's event loop only. client: the name of a key.

    Fields:
        functions, objects: by client and name. durable_replies: those that outlive the server. set_aside: damaged
            data. tenants: the owners of the data.
    """

    def __init__(
        self,
        folder: Path,
        registry: Registry,
        objects: HeldObjects,
        limits: Callable[[str], protocol.Limits],
        allowed: Allowed,
        steps: Collection[str],
        changed: Callable[[str, Any, int], None],
        served: ServedETasks = NONE_SERVED,
        reserve: Reserve | None = None,
    ) -> None:
        """folder: the server's state. changed: called with a client, "libraries" or "objects", and the bytes that the
        client now has of these. reserve: room on the disk."""
        self._state = State(folder, reserve)
        self.set_aside = self._state.set_aside
        self._uploads = Uploads(self._state, limits, allowed, changed)
        self.objects = ObjectStore(self._state, self._uploads, objects)
        self.durable_replies = DurableReplies(self._state)
        self.tenants = Tenants(self._state)
        self.functions = ClientFunctions(self._state, self._uploads, self.objects, objects, registry, steps, served)

    async def open(self) -> None:
        """Load the data that an earlier epoch has left.

        Raises:
            InvalidConfig
        """
        self._state.open()
        self.tenants.open()
        await self._uploads.open()
        await self.objects.open()
        await self.functions.open()

    def close(self) -> None:
        """Close the functions and the state."""
        self.functions.close()
        self._state.close()

    def gone(self) -> bool:
        """Return True if the files of the state were removed or renamed since they were opened."""
        return self._state.gone()

    def has(self, client: str) -> bool:
        """Return True if a client has uploads or functions here."""
        return self._uploads.blobs.has(client) or self.functions.has(client)

    async def purge(self, client: str) -> None:
        """Remove all data of a client, after its running changes have ended.

        Raises:
            KaasError
        """
        await asyncio.sleep(0)  # a change that has begun asks for its turn now, before this
        async with self.objects.turn(client):
            self.functions.purge(client)
            self.objects.purge(client)
            self._uploads.blobs.purge(client)
            self.durable_replies.purge(client)

    def reply(
        self, client: str, message: StoreMessage, frames: Sequence[Any]
    ) -> StoreReply | Coroutine[Any, Any, StoreReply]:
        """Carry out a message. Return the reply, or a coroutine that returns it. frames: without the header.

        Raises:
            KaasError
        """
        match message:
            case protocol.Get():
                value, part = self.objects.get(client, message)
                return value, (part,)
            case protocol.Objects():
                return self.objects.list(client, message), ()
            case protocol.Functions():
                return self.functions.list(client, message), ()
            case protocol.Upload():
                return _without_frames(self._uploads.offer(client, message))
            case protocol.Chunk():
                return _without_frames(self._uploads.chunk(client, message, _frame(frames)))
            case protocol.Register():
                return _without_frames(self.functions.register(client, message, _frame(frames)))
            case protocol.Unregister():
                return _without_frames(self.functions.unregister(client, message))
            case protocol.Put():
                return _without_frames(self.objects.put(client, message, frames[0] if frames else None))
            case protocol.Delete():
                return _without_frames(self.objects.delete(client, message))


async def _without_frames(header: Awaitable[protocol.FromServer]) -> StoreReply:
    return await header, ()


def _frame(frames: Sequence[Any]) -> Any:
    """Return the frame that a message must have.

    Raises:
        InvalidRequest
    """
    if not frames:
        raise InvalidRequest("this message needs a second frame, and there is none")
    return frames[0]
