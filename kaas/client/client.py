"""`kaas.Client`: a program outside the cluster, or beside the server, that calls functions there; without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np

from kaas.client.connecting import ServerEndpoint, retried
from kaas.client.open_calls import TryAgain
from kaas.client.prepared import prepare
from kaas.client.registering import Registering
from kaas.client.remote_calls import RemoteCalls
from kaas.client.remote_function import RemoteFunction, RemoteObject, check_object_name
from kaas.client.server_connection import CurveKeys
from kaas.client.transfers import Progress, Transfers, UploadContent
from kaas.errors import InvalidConfig, InvalidRequest, MissingContent, UnknownObject
from kaas.executor.device.host_arrays import on_host
from kaas.futures import Future, running_loop
from kaas.ktask.arguments import Buffer
from kaas.ktask.dtypes import DTYPE_BYTES
from kaas.ktask.graph import KTask
from kaas.ktask.request import raw_bytes
from kaas.models.model import CompiledModel
from kaas.wire import protocol
from kaas.wire.key_files import OwnKeys, is_key, own_keys
from kaas.wire.outputs import array_of

PATIENCE_S = 60.0
LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")

T = TypeVar("T")
Invocable = RemoteFunction | KTask | str


class Client:
    """A client of a server, for any number of threads.

    A client connects when it is first used, and again by itself when the connection breaks or the server starts again.
    Calls without a reply are then sent again, and run once.

    Args:
        address: as "tcp://host:port".
        keys: the file that `kaas keys new` wrote for this client, or its content. None for a server without keys, which
            is on this machine.
        server_key: the server's public key, if it is not the one in that file.
        signatures: of kTasks, by key, for a server that takes signed ones: `kaas.remote.signing.read_signatures`.
        patience_s: for how long the client looks for a server that is not there, and sends again what a server has put
            off; calls with a deadline have that instead.

    Raises:
        InvalidConfig
    """

    def __init__(
        self,
        address: str,
        *,
        keys: str | os.PathLike[str] | OwnKeys | None = None,
        server_key: str | None = None,
        signatures: Mapping[str, bytes] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if isinstance(patience_s, bool) or not isinstance(patience_s, int | float) or not patience_s >= 0:
            raise InvalidConfig(f"patience_s is a number of seconds, not {patience_s!r}", field="patience_s")
        self._endpoint = ServerEndpoint(address, _curve_keys(address, keys, server_key), patience_s)
        self._patience_s = patience_s
        self._calls = RemoteCalls(self._endpoint, patience_s)
        self._transfers = Transfers(self._calls)
        self._registering = Registering(self._transfers, signatures or {})
        self._known: dict[str, RemoteFunction] = {}  # by a kTask's key, or by name

    # --- functions

    def register(
        self,
        task: KTask | CompiledModel,
        constants: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        before: str = "",
        after: str = "",
        progress: Progress | None = None,
    ) -> RemoteFunction:
        """Return a function at the server: a kTask with some inputs bound once, or a model, which brings its constants.

        Code and constants that the server has already are not sent.

        Args:
            task: the kTask or model.
            constants: by buffer name: arrays, or objects that were put there.
            name: by which the function can be called too, instead of another of this name. Several variants of a
                model have none.
            before: the server's cTask that runs before it.
            after: the server's cTask that runs after it.
            progress: called with the bytes that the server has, and with those of all.

        Raises:
            Unreachable, InvalidRequest, InvalidCode, NotAllowed, QuotaExceeded
        """
        registering = self._registering
        if isinstance(task, CompiledModel):
            model = task
            if constants or before or after:
                raise InvalidRequest(f"model {model.name!r} brings its constants, and has nothing around it")
            tasks = self._tried(lambda: registering.model(model, name, progress))
            return RemoteFunction(self, name or model.name, tasks)
        if not isinstance(task, KTask):
            raise InvalidRequest(f"register takes a KTask or a CompiledModel, not {task!r}")
        around = (before, after)
        remote = self._tried(lambda: registering.task(task, constants, name, around, progress))
        function = RemoteFunction(self, name or task.label, (remote,))
        if name:
            self._known[name] = function
        return function

    def function(self, name: str) -> RemoteFunction:
        """A function that this client has registered, by name or key, also in another program.

        Raises:
            Unreachable, UnknownFunction
        """
        remote = self._tried(lambda: self._registering.known(name))
        return RemoteFunction(self, name, (remote,))

    def functions(self) -> list[dict[str, Any]]:
        """What is known of each that this client has registered."""
        return self._listed(protocol.Functions)

    def unregister(self, function: RemoteFunction | str) -> None:
        """Forget a function at the server.

        Raises:
            Unreachable, UnknownFunction
        """
        keys = function.keys if isinstance(function, RemoteFunction) else (function,)
        self._known = {known: entry for known, entry in self._known.items() if known != function and function != entry}
        for key in keys:
            self._unregister(key)

    def _unregister(self, key: str) -> None:
        self._asked(lambda number: protocol.Unregister(number, key))

    # --- calls

    def call(
        self,
        function: Invocable,
        inputs: Mapping[str, Any] | None = None,
        *,
        scalars: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
        key: str = "",
        store: Mapping[str, str] | None = None,
        trace: str = "",
    ) -> Future:
        """Run a function, without waiting for its outputs.

        If this client has as much open at the server as it may, the call waits until there is room. In a running event
        loop it does not wait for that either: the message is sent when there is room.

        Args:
            function: one that was registered, its name, or a kTask without constants, which is registered first.
            inputs: by buffer name: arrays, objects that were put there (`put`), or Views of them. Values may be written
                to again as soon as this returns.
            scalars: a value for each of the kTask's Scalars.
            deadline_s: seconds from now within which there is a reply.
            key: of idempotency, up to 64 bytes of text: with the same key it is the same request, which is not run
                again for a while, and has the same reply.
            store: names of objects that outputs become at the server, by output; these outputs stay there.
            trace: a W3C traceparent.

        Returns:
            A `kaas.Future`: `result()` and `await` give the output's array, read-only; for several outputs a named
            tuple. For an output that stays, it holds a RemoteObject.

        Raises:
            Unreachable, NotInitialized, InvalidRequest, RequestTooLarge, DeadlineExceeded: here, for all that can be
            seen
                here. All other errors come through the future, as the KaasError that they are.
        """
        calls = self._calls
        call = prepare(calls, self.resolved(function), inputs, scalars, deadline_s, key, store, trace)
        room = calls.submit(call)
        if room is not None:
            if running_loop() is not None:  # which must not wait: answers come to others of its tasks meanwhile
                calls.queue.submit_when(room, call)
            else:
                calls.queue.wait(room, deadline_s)
                calls.queue.submit(call)
        return Future(call, call.make)

    def known(self, function: Invocable) -> RemoteFunction | None:
        """The function that is meant, if that can be told without asking the server."""
        if isinstance(function, RemoteFunction):
            return function
        return self._known.get(function.key if isinstance(function, KTask) else function)

    def resolved(self, function: Invocable) -> RemoteFunction:
        """The function that is meant."""
        known = function if type(function) is RemoteFunction else self.known(function)
        if known is None:
            if isinstance(function, KTask):
                known = self._known[function.key] = self.register(function)
            elif isinstance(function, str):
                known = self._known[function] = self.function(function)
            else:
                raise InvalidRequest(f"call takes a RemoteFunction, a KTask or a name, not {function!r}")
        return known

    # --- objects

    def put(self, name: str, value: Any, *, progress: Progress | None = None) -> RemoteObject:
        """Give a value a name at the server, instead of another value of that name.

        Bytes that the server has already are not sent.

        Args:
            name: of the object.
            value: an array, or plain bytes.
            progress: called with the bytes that the server has, and with those of all.

        Raises:
            Unreachable, InvalidRequest, QuotaExceeded
        """
        check_object_name(name)
        host = on_host(name, value)
        flat, dtype, shape = raw_bytes(Buffer(name, ()), host)
        if dtype is not None and dtype not in DTYPE_BYTES:
            raise InvalidRequest(f"object {name!r}: no dtype {dtype!r}; known: {', '.join(DTYPE_BYTES)}")
        made = RemoteObject(name, dtype or "uint8", (len(flat),) if shape is None else shape)
        self._tried(lambda: self._registering.put(made, UploadContent.value(flat), progress))
        return made

    def get(self, name: str | RemoteObject, *, progress: Progress | None = None) -> np.ndarray[Any, Any]:
        """A value at the server, read-only.

        Raises:
            Unreachable, UnknownObject
        """
        wanted = _object_name(name)
        header, data = self._tried(lambda: self._transfers.download(wanted, progress))
        return array_of(memoryview(data).toreadonly(), header.dtype, header.shape)

    def object(self, name: str) -> RemoteObject:
        """What is there under a name, also put by another program of this client's, as an input for calls.

        Raises:
            Unreachable, UnknownObject
        """
        for entry in self.objects():
            if entry["name"] == name:
                return RemoteObject(name, entry["dtype"], tuple(entry["shape"]))
        raise UnknownObject(f"this client has put no object {name!r} there", object=str(name))

    def delete(self, name: str | RemoteObject) -> None:
        """Delete an object at the server.

        Raises:
            Unreachable, UnknownObject
        """
        unwanted = _object_name(name)
        self._asked(lambda number: protocol.Delete(number, unwanted))

    def objects(self) -> list[dict[str, Any]]:
        """What is known of each that this client has put there."""
        return self._listed(protocol.Objects)

    # --- the server

    def status(self) -> Any:
        """What the server tells of itself; see docs/protocol.md."""
        return self._told("status")

    def stats(self) -> Any:
        """Return the figures of this client at the server."""
        return self._told("stats")

    def usage(self) -> Any:
        """What this client has used, by function."""
        return self._told("usage")

    def health(self, *, canary: bool = False) -> Any:
        """canary: whether one kTask is run for it."""
        return self._told("health", (b"canary",) if canary else ())

    def drain(self) -> Any:
        """Have the server take nothing more; for its administrators."""
        return self._told("drain")

    def pardon(self, function: KTask | str) -> bool:
        """Lift the quarantine of a function, and return True if it was in quarantine; for administrators.

        Args:
            function: its `key` among `status()["quarantined"]`, of any client, or a kTask: all functions of that.

        Raises:
            Unreachable, InvalidRequest: this client is no administrator.
        """
        key = function.key if isinstance(function, KTask) else function
        pardoned: bool = self._told("pardon", (key.encode(),))["pardoned"]
        return pardoned

    def limits(self) -> protocol.Limits | None:
        """What this client may; None as long as it has not connected."""
        return self._calls.limits()

    def _told(self, what: str, frames: Sequence[bytes] = ()) -> Any:
        return self._asked(lambda number: protocol.Ask(number, what), frames).answer

    def _listed(self, question: type[protocol.Functions] | type[protocol.Objects]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._asked(question).entries
        return entries

    def _asked(self, make: Callable[[int], Any], frames: Sequence[bytes] = ()) -> Any:
        return self._tried(lambda: self._transfers.ask(make, frames))

    def _tried(self, do: Callable[[], T]) -> T:
        """Until it comes to an end of which nothing says that it may be tried again."""
        try:
            return retried(self._patience_s, self._calls.stopped, _delay_s)(do)
        except TryAgain as again:
            raise again.error from None

    # --- its end

    def close(self) -> None:
        """Calls that have no answer end with NotInitialized, and do not run if they have not begun."""
        self._calls.close()
        self._endpoint.close()

    @property
    def calls(self) -> RemoteCalls:
        """The calls of this client."""
        return self._calls

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest("a kaas.Client is of this process only, and so are its functions: others have their own")

    def __repr__(self) -> str:
        return f"<kaas.Client of {self._endpoint.address}>"


def _object_name(name: str | RemoteObject) -> str:
    if isinstance(name, RemoteObject):
        return name.name
    check_object_name(name)
    return name


def _delay_s(error: BaseException) -> float | None:
    if isinstance(error, MissingContent):  # it gave way meanwhile
        return 0.0
    return error.retry_s if isinstance(error, TryAgain) else None


def _curve_keys(
    address: str, keys: str | os.PathLike[str] | OwnKeys | None, server_key: str | None
) -> CurveKeys | None:
    if not isinstance(address, str) or not address.startswith("tcp://"):
        raise InvalidConfig(f'the address of a server is as "tcp://host:port", not {address!r}', field="address")
    if keys is None:
        if not address.startswith(LOOPBACK):
            raise InvalidConfig(f"without keys a client speaks to this machine only, not to {address}", field="keys")
        return None
    if not isinstance(keys, str | os.PathLike | OwnKeys):
        raise InvalidConfig(f"keys is the file that `kaas keys new` wrote, not {keys!r}", field="keys")
    own = keys if isinstance(keys, OwnKeys) else own_keys(Path(keys))
    server = server_key or own.server_key
    if not is_key(server):
        raise InvalidConfig(f"server_key is a CURVE key, 40 letters of Z85, not {server!r}", field="server_key")
    return CurveKeys(server.encode(), own.public_key.encode(), own.secret_key.encode())
