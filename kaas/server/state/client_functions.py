"""Functions that remote clients have registered, by client. A server registers them again when it starts.

A function counts as many bytes as its kTask with all its code has, which the pool keeps for its executors.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import msgspec

from kaas.errors import InvalidRequest, KaasError, UnknownFunction
from kaas.ktask.library import Library
from kaas.pool.functions import Registry
from kaas.pool.on_processes.objects import HeldObjects
from kaas.server.building.function_builder import ClientFunction, FunctionBuilder, FunctionRow
from kaas.server.building.invocable_function import InvocableFunction
from kaas.server.building.served import NONE_SERVED, ServedETasks, described
from kaas.server.building.uploads import Uploads
from kaas.server.clients.allow import HASH
from kaas.server.state.blob_store import too_many
from kaas.server.state.object_store import ObjectStore, shown
from kaas.server.state.state_folder import State
from kaas.wire import protocol
from kaas.wire.sent_ktasks import NAME_BYTES
from kaas.wire.signing import SIGNATURE_BYTES

MOST_FUNCTIONS = 1024
"""The most functions of one client."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
KIND = "remote functions"


class ClientFunctions:
    """Functions by client; a client is the name of a key. Use an object of this class from one event loop only."""

    def __init__(
        self,
        state: State,
        uploads: Uploads,
        object_store: ObjectStore,
        objects: HeldObjects,
        registry: Registry,
        steps: Collection[str] = (),
        served: ServedETasks = NONE_SERVED,
    ) -> None:
        """steps: names of cTasks that functions may have around them. served: the server's own functions; a client's
        function takes precedence over one with its name."""
        self._state = state
        self._uploads = uploads
        self._object_store = object_store
        self._builder = FunctionBuilder(uploads, object_store, objects, registry)
        self._steps = steps
        self._served = served
        self._clients: dict[str, dict[str, ClientFunction]] = {}
        self._named: dict[str, dict[str, InvocableFunction | KaasError]] = {}

    async def open(self) -> None:
        """Register the functions of earlier epochs again. A function that cannot be registered now, for example since
        its code is no longer allowed, is kept with its error."""
        libraries: dict[tuple[str, str], Library] = {}  # many functions of one model share them
        for row in self._state.read(KIND, _decode):
            try:
                entry = await self._builder.restored(row, libraries)
            except KaasError as error:
                entry = ClientFunction(row, error, [], 0)
            else:
                if row.facts is None:
                    with suppress(KaasError):  # for example on a full disk: the next start builds it again
                        self._state.put(KIND, row.client, entry.handle, msgspec.msgpack.encode(entry.row))
            self._add(entry)

    def close(self) -> None:
        """Close the builder of functions."""
        self._builder.close()

    # --- looking up

    def named(self, client: str, function: str) -> InvocableFunction:
        """Return a function by name or key.

        Raises:
            UnknownFunction. KaasError: it could not be registered again after a restart.
        """
        try:
            found = self._named[client][function]
        except KeyError:
            served = self._served.named(client, function)
            if served is not None:
                return served
            raise UnknownFunction(
                f"this client has registered no function {shown(function)}", function=function[:NAME_BYTES]
            ) from None
        if isinstance(found, KaasError):
            raise found
        return found

    def list(self, client: str, message: protocol.Functions) -> protocol.Listed:
        """Return a description of each function of a client, and of the server's own ones."""
        own = self._clients.get(client, {})
        entries: list[Any] = [entry.listed for entry in own.values()]
        entries += [described(each) for each in self._served.all(client) if each.name not in own]
        return protocol.Listed(message.number, entries)

    # --- registering

    async def register(self, client: str, message: protocol.Register, frame: bytes | memoryview) -> protocol.Registered:
        """Build a function and register it, instead of another one with its name.

        Raises:
            InvalidRequest, InvalidGraph, InvalidCode, MissingContent, UnknownObject, NotAllowed, QuotaExceeded
        """
        self._check(message)
        made = await self._uploads.unbroken(self._register(client, message, bytes(frame)))
        return protocol.Registered(message.number, made.key, *made.described)

    def _check(self, message: protocol.Register) -> None:
        name = message.name
        if name and (not _NAME.fullmatch(name) or HASH.fullmatch(name)):
            raise InvalidRequest(
                f"a function's name is 1 to 100 letters, digits, '_', '.' and '-', and no key: not {shown(name)}"
            )
        if len(message.signature) > SIGNATURE_BYTES:  # it is stored
            raise InvalidRequest(f"a signature has {SIGNATURE_BYTES} bytes, not {len(message.signature)}")
        for step in filter(None, (message.before, message.after)):
            if step not in self._steps:
                raise InvalidRequest(f"this server has no cTask {shown(step)}")

    async def _register(self, client: str, message: protocol.Register, task: bytes) -> InvocableFunction:
        async with self._object_store.turn(client):
            constants = {}
            for buffer, name in message.constants.items():
                stored = self._object_store.named(client, name)
                constants[buffer] = stored.content.hash, stored.dtype
            around = message.before, message.after
            row = FunctionRow(client, message.name, task, constants, *around, signature=message.signature)
            mine = self._clients.get(client, {})
            for known in mine.values():
                if isinstance(known.ready, InvocableFunction) and known.row.asks_for(row):
                    return known.ready
            others = sum(each.kernels for each in mine.values() if each.handle != message.name)
            entry = await self._builder.made(row, others)
            before = mine.get(entry.handle)
            try:
                if before is None and len(mine) >= MOST_FUNCTIONS:
                    raise too_many(client, "functions", MOST_FUNCTIONS, len(mine))
                self._state.put(KIND, client, entry.handle, msgspec.msgpack.encode(entry.row))
            except KaasError:
                self._builder.let_go(entry)
                raise
            self._add(entry)
            if before is not None:
                self._builder.let_go(before)
            assert isinstance(entry.ready, InvocableFunction)
            return entry.ready

    # --- adding and removing

    def _add(self, entry: ClientFunction) -> None:
        client = entry.row.client
        self._clients.setdefault(client, {})[entry.handle] = entry
        self._look_up(client)

    def _look_up(self, client: str) -> None:
        """Rebuild the table of a client's names and keys."""
        found = self._named[client] = {}
        for entry in self._clients[client].values():
            found[entry.row.key] = entry.ready
        for handle, entry in self._clients[client].items():
            found[handle] = entry.ready

    async def unregister(self, client: str, message: protocol.Unregister) -> protocol.Done:
        """Remove the function with a name, and all functions with a key.

        Raises:
            UnknownFunction
        """
        await self._uploads.unbroken(self._unregister(client, message.function))
        return protocol.Done(message.number)

    async def _unregister(self, client: str, function: str) -> None:
        async with self._object_store.turn(client):
            mine = self._clients.get(client, {})
            going = [mine[function]] if function in mine else []
            going += [entry for entry in mine.values() if entry.row.key == function and entry not in going]
            if not going:
                self.named(client, function)
            for entry in going:
                self._state.remove(KIND, client, entry.handle)
                del mine[entry.handle]
                self._look_up(client)
                self._builder.let_go(entry)

    def has(self, client: str) -> bool:
        """Return True if a client has functions."""
        return bool(self._clients.get(client))

    def purge(self, client: str) -> None:
        """Remove all functions of a client. The caller holds its `turn`.

        Raises:
            KaasError
        """
        for handle, entry in self._clients.pop(client, {}).items():
            self._state.remove(KIND, client, handle)
            self._builder.let_go(entry)
        self._named.pop(client, None)


_decode = msgspec.msgpack.Decoder(FunctionRow).decode
