"""`kaas.AsyncClient`: `kaas.Client` for asyncio programs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from kaas.client.client import PATIENCE_S, Callee, Client
from kaas.client.prepared import prepare
from kaas.client.remote_function import RemoteFunction, RemoteObject
from kaas.client.transfers import OnProgress
from kaas.errors import DeadlineExceeded
from kaas.executor.device.host_arrays import on_host
from kaas.futures import Future, PendingReply
from kaas.ktask.graph import KTask
from kaas.models.model import CompiledModel
from kaas.wire import protocol
from kaas.wire.key_files import OwnKeys

if TYPE_CHECKING:
    import numpy as np

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient:
    """A client for one event loop or several. Arguments, methods and errors are those of `Client`."""

    def __init__(
        self,
        address: str,
        *,
        keys: str | os.PathLike[str] | OwnKeys | None = None,
        server_key: str | None = None,
        signatures: Mapping[str, bytes] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._client = Client(address, keys=keys, server_key=server_key, signatures=signatures, patience_s=patience_s)

    async def register(
        self,
        task: KTask | CompiledModel,
        constants: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        before: str = "",
        after: str = "",
        progress: OnProgress | None = None,
    ) -> RemoteFunction:
        """Do as `Client.register` does, in a thread."""
        if isinstance(constants, Mapping):  # here: libraries have a current stream for each thread
            constants = {name: on_host(name, value) for name, value in constants.items()}
        function = await self._in_thread(
            self._client.register, task, constants, name=name, before=before, after=after, progress=progress
        )
        return RemoteFunction(self, function.name, function.tasks)

    async def function(self, name: str) -> RemoteFunction:
        """Do as `Client.function` does, in a thread."""
        return RemoteFunction(self, name, (await self._in_thread(self._client.function, name)).tasks)

    async def functions(self) -> list[dict[str, Any]]:
        """Do as `Client.functions` does, in a thread."""
        return await self._in_thread(self._client.functions)

    async def unregister(self, function: RemoteFunction | str) -> None:
        """Do as `Client.unregister` does, in a thread."""
        await self._in_thread(self._client.unregister, function)

    async def call(
        self,
        function: Callee,
        inputs: Mapping[str, Any] | None = None,
        *,
        scalars: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
        key: str = "",
        store: Mapping[str, str] | None = None,
        trace: str = "",
    ) -> Any:
        """Run a function, and return its outputs as `Client.call`'s future holds them.

        Cancelling the task that awaits them cancels the call.
        """
        client = self._client
        known = client.known(function)
        if known is None:
            known = await self._in_thread(client.resolved, function)
        calls = client.calls
        call = prepare(calls, known, inputs, scalars, deadline_s, key, store, trace)
        room = calls.submit(call)
        if room is not None:
            await self._room(room, deadline_s)
            calls.queue.submit(room, call)
        return await Future(call, call.make)

    async def _room(self, room: PendingReply, deadline_s: float | None) -> None:
        """Wait until credit has been taken for a call.

        Raises:
            DeadlineExceeded: there was no credit within deadline_s.
        """
        try:
            async with asyncio.timeout(deadline_s):
                await Future(room, tuple)
        except BaseException as error:
            self._client.calls.queue.leave(room)
            if isinstance(error, TimeoutError) and error is not room.error:
                raise DeadlineExceeded(
                    f"this client's open requests left no room within {deadline_s} s", deadline_s=deadline_s
                ) from None
            raise

    async def put(self, name: str, value: Any, *, progress: OnProgress | None = None) -> RemoteObject:
        """Do as `Client.put` does, in a thread."""
        value = on_host(name, value)  # here: libraries have a current stream for each thread
        return await self._in_thread(self._client.put, name, value, progress=progress)

    async def get(self, name: str | RemoteObject, *, progress: OnProgress | None = None) -> np.ndarray[Any, Any]:
        """Do as `Client.get` does, in a thread."""
        return await self._in_thread(self._client.get, name, progress=progress)

    async def object(self, name: str) -> RemoteObject:
        """Do as `Client.object` does, in a thread."""
        return await self._in_thread(self._client.object, name)

    async def delete(self, name: str | RemoteObject) -> None:
        """Do as `Client.delete` does, in a thread."""
        await self._in_thread(self._client.delete, name)

    async def objects(self) -> list[dict[str, Any]]:
        """Do as `Client.objects` does, in a thread."""
        return await self._in_thread(self._client.objects)

    async def status(self) -> Any:
        """Do as `Client.status` does, in a thread."""
        return await self._in_thread(self._client.status)

    async def stats(self) -> Any:
        """Do as `Client.stats` does, in a thread."""
        return await self._in_thread(self._client.stats)

    async def usage(self) -> Any:
        """Do as `Client.usage` does, in a thread."""
        return await self._in_thread(self._client.usage)

    async def health(self, *, canary: bool = False) -> Any:
        """Do as `Client.health` does, in a thread."""
        return await self._in_thread(self._client.health, canary=canary)

    async def drain(self) -> Any:
        """Do as `Client.drain` does, in a thread."""
        return await self._in_thread(self._client.drain)

    async def pardon(self, function: KTask | str) -> bool:
        """Do as `Client.pardon` does, in a thread."""
        return await self._in_thread(self._client.pardon, function)

    def limits(self) -> protocol.Limits | None:
        """Return this client's limits at the server, or None before the first connection."""
        return self._client.limits()

    async def close(self) -> None:
        """Do as `Client.close` does, in a thread."""
        await self._in_thread(self._client.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _in_thread(self, do: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function in a thread, and return its result."""
        return await asyncio.to_thread(do, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<kaas.AsyncClient: {self._client!r}>"
