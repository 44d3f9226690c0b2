"""What remote clients have at a server: code and values that they have uploaded, functions, objects by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

from kaas.errors import InvalidRequest
from kaas.pool.functions import Registry
from kaas.pool.on_processes.objects import HeldObjects
from kaas.server.building.served import NONE_SERVED, ServedETasks
from kaas.server.building.uploads import Uploads
from kaas.server.peers.allow import Allowed
from kaas.server.peers.tenants import Tenants
from kaas.server.state.durable_replies import DurableReplies
from kaas.server.state.functions import ClientFunctions
from kaas.server.state.object_store import ObjectStore
from kaas.server.state.reserve import Reserve
from kaas.server.state.state import State
from kaas.wire import protocol

Kept = (
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
"""Messages about what a client has here."""
Said = tuple[protocol.FromServer, Sequence[Any]]
"""An answer, and the frames behind it."""


class ClientStore:
    """Belongs to the pool's event loop. client: the name of a key.

    Fields:
        functions, values: look up by client and name. answers: that outlive the server. aside: what was damaged.
        tenants: who has left it.
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
        """folder: of what outlives the server. changed: is told what a client holds from now on: its name, "libraries"
        or "objects", bytes. reserve: of the disk."""
        self._state = State(folder, reserve)
        self.set_aside = self._state.set_aside
        self._uploads = Uploads(self._state, limits, allowed, changed)
        self.objects = ObjectStore(self._state, self._uploads, objects)
        self.durable_replies = DurableReplies(self._state)
        self.tenants = Tenants(self._state)
        self.functions = ClientFunctions(self._state, self._uploads, self.objects, objects, registry, steps, served)

    async def open(self) -> None:
        """What an earlier life of the server has left is there again.

        Raises:
            InvalidConfig
        """
        self._state.open()
        self.tenants.open()
        await self._uploads.open()
        await self.objects.open()
        await self.functions.open()

    def close(self) -> None:
        self.functions.close()
        self._state.close()

    def has(self, client: str) -> bool:
        """Whether a client has left anything here."""
        return self._uploads.contents.has(client) or self.functions.has(client)

    async def purge(self, client: str) -> None:
        """Forget all that a client has here; what it has begun to change is done first.

        Raises:
            KaasError
        """
        async with self.objects.turn(client):
            self.functions.purge(client)
            self.objects.purge(client)
            self._uploads.contents.purge(client)
            self.durable_replies.purge(client)

    def answer(self, client: str, message: Kept, frames: Sequence[Any]) -> Said | Coroutine[Any, Any, Said]:
        """What a message leads to. frames: those behind the header.

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
                return _said(self._uploads.offer(client, message))
            case protocol.Chunk():
                return _said(self._uploads.chunk(client, message, _frame(frames)))
            case protocol.Register():
                return _said(self.functions.register(client, message, _frame(frames)))
            case protocol.Unregister():
                return _said(self.functions.unregister(client, message))
            case protocol.Put():
                return _said(self.objects.put(client, message, frames[0] if frames else None))
            case protocol.Delete():
                return _said(self.objects.delete(client, message))


async def _said(answer: Awaitable[protocol.FromServer]) -> Said:
    return await answer, ()


def _frame(frames: Sequence[Any]) -> Any:
    """
    Raises:
        InvalidRequest
    """
    if not frames:
        raise InvalidRequest("what this message is about stands in its second frame, and there is none")
    return frames[0]
