"""`kaas.Client`: calls functions of a server, from outside its cluster or from the same machine, without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from kaas.client.transfers import OnProgress, Transfers, UploadContent
from kaas.errors import InvalidConfig, InvalidRequest, KaasError, MissingContent, UnknownObject
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
Callee = RemoteFunction | KTask | str


class Client:
    """A client of a server. Any number of threads may use it.

    A client connects at its first use, and again when the connection breaks or the server restarts. Calls without a
    reply are then sent again; the server runs each of them once.

    Args:
        address: of the server, such as "tcp://host:port".
        keys: the file that `kaas keys new` wrote for this client, or its content. None for a server without keys, which
            is on this machine.
        server_key: the server's public key, if that file has another.
        signatures: signatures of kTasks, by key, for a server that requires them; see
            `kaas.remote.signing.read_signatures`.
        patience_s: seconds for which the client tries to reach a server, and repeats requests that the server has put
            off. A call with a deadline is repeated until its deadline instead.

    Raises:
        InvalidConfig: the address, a key or patience_s is malformed.
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
        progress: OnProgress | None = None,
    ) -> RemoteFunction:
        """Register a kTask, with some inputs bound to constants, or a model with its constants; return the function.

        Code and constants that the server has already are not sent.

        Args:
            task: the kTask or model.
            constants: by buffer name: arrays, or objects at the server (`put`).
            name: a name for calls. It replaces an earlier function of this name. A model with several variants gets no
                name at the server.
            before: the server's cTask that runs before the kTask.
            after: the server's cTask that runs after the kTask.
            progress: called with the number of bytes that the server has, and the number of all bytes.

        Raises:
            KaasError: Unreachable, InvalidRequest, InvalidCode, NotAllowed or QuotaExceeded.
        """
        registering = self._registering
        if isinstance(task, CompiledModel):
            model = task
            if constants or before or after:
                raise InvalidRequest(f"model {model.name!r} has its own constants, and no steps before or after it")
            tasks = self._retried(lambda: registering.model(model, name, progress))
            return RemoteFunction(self, name or model.name, tasks)
        if not isinstance(task, KTask):
            raise InvalidRequest(f"register takes a KTask or a CompiledModel, not {task!r}")
        around = (before, after)
        remote = self._retried(lambda: registering.task(task, constants, name, around, progress))
        function = RemoteFunction(self, name or task.label, (remote,))
        if name:
            self._known[name] = function
        return function

    def function(self, name: str) -> RemoteFunction:
        """Return a function that this client has registered, in any program, by name or key.

        Raises:
            Unreachable: the server does not reply. UnknownFunction: there is no such function.
        """
        remote = self._retried(lambda: self._registering.known(name))
        return RemoteFunction(self, name, (remote,))

    def functions(self) -> list[dict[str, Any]]:
        """Return the server's description of each function that this client has registered."""
        return self._listed(protocol.Functions)

    def unregister(self, function: RemoteFunction | str) -> None:
        """Remove a function from the server.

        Raises:
            Unreachable: the server does not reply. UnknownFunction: there is no such function.
        """
        keys = function.keys if isinstance(function, RemoteFunction) else (function,)
        self._known = {known: entry for known, entry in self._known.items() if known != function and function != entry}
        for key in keys:
            self._retried(self._transfers.removal(partial(protocol.Unregister, function=key)))

    # --- calls

    def call(
        self,
        function: Callee,
        inputs: Mapping[str, Any] | None = None,
        *,
        scalars: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
        key: str = "",
        store: Mapping[str, str] | None = None,
        trace: str = "",
    ) -> Future:
        """Run a function, and return at once a future of its outputs.

        If this client's open requests use all of its credit at the server, the call waits until there is room. In a
        running event loop the call never waits: the message is sent when there is room.

        Args:
            function: a registered function, its name, or a kTask without constants, which is registered first.
            inputs: by buffer name: arrays, objects at the server (`put`), or Views of them. The caller may change the
                arrays as soon as this returns.
            scalars: a value for each of the kTask's Scalars.
            deadline_s: the reply comes within so many seconds from now, or the call fails.
            key: an idempotency key, up to 64 bytes of text. For a while, calls with the same key are one request: it
                runs once, and each call gets its reply.
            store: by output, the name of the object that the output becomes at the server; its data stay there.
            trace: a W3C traceparent.

        Returns:
            A `kaas.Future`. `result()` and `await` return the output's array, read-only; several outputs are a named
            tuple. A stored output is a RemoteObject.

        Raises:
            KaasError: Unreachable, NotInitialized, InvalidRequest, RequestTooLarge or DeadlineExceeded, as far as this
                process can find out at once. The future raises all other errors, each as its own KaasError.
        """
        calls = self._calls
        call = prepare(calls, self.resolved(function), inputs, scalars, deadline_s, key, store, trace)
        try:
            room = calls.submit(call)
            if room is not None:
                if running_loop() is not None:  # a loop must not wait: its other tasks receive replies meanwhile
                    calls.queue.submit_when(room, call)
                else:
                    calls.queue.wait(room, deadline_s)
                    calls.queue.submit(room, call)
        except KaasError:
            raise
        except BaseException:
            calls.interrupted(call)
            raise
        return Future(call, call.make)

    def known(self, function: Callee) -> RemoteFunction | None:
        """Return the function for a call if this client knows it, else None; does not ask the server."""
        if isinstance(function, RemoteFunction):
            return function
        return self._known.get(function.key if isinstance(function, KTask) else function)

    def resolved(self, function: Callee) -> RemoteFunction:
        """Return the function for a call; ask the server, or register a kTask, if need be.

        Raises:
            InvalidRequest: not a RemoteFunction, a KTask or a name. KaasError: as `register` and `function`.
        """
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

    def put(self, name: str, value: Any, *, progress: OnProgress | None = None) -> RemoteObject:
        """Store a value at the server under a name. It replaces an earlier value of that name.

        Bytes that the server has already are not sent.

        Args:
            name: of the object.
            value: an array, or plain bytes.
            progress: called with the number of bytes that the server has, and the number of all bytes.

        Raises:
            KaasError: Unreachable, InvalidRequest or QuotaExceeded.
        """
        check_object_name(name)
        host = on_host(name, value)
        flat, dtype, shape = raw_bytes(Buffer(name, ()), host)
        if dtype is not None and dtype not in DTYPE_BYTES:
            raise InvalidRequest(f"object {name!r}: no dtype {dtype!r}; known: {', '.join(DTYPE_BYTES)}")
        made = RemoteObject(name, dtype or "uint8", (len(flat),) if shape is None else shape)
        self._retried(lambda: self._registering.put(made, UploadContent.value(flat), progress))
        return made

    def get(self, name: str | RemoteObject, *, progress: OnProgress | None = None) -> np.ndarray[Any, Any]:
        """Return a value that is stored at the server, as a read-only array.

        Raises:
            Unreachable: the server does not reply. UnknownObject: there is no such object.
        """
        wanted = _object_name(name)
        header, data = self._retried(lambda: self._transfers.download(wanted, progress))
        return array_of(memoryview(data).toreadonly(), header.dtype, header.shape)

    def object(self, name: str) -> RemoteObject:
        """Return an object that this client has put, in any program, by name; it is an input for calls.

        Raises:
            Unreachable: the server does not reply. UnknownObject: there is no such object.
        """
        for entry in self.objects():
            if entry["name"] == name:
                return RemoteObject(name, entry["dtype"], tuple(entry["shape"]))
        raise UnknownObject(f"this client has put no object {name!r} there", object=str(name))

    def delete(self, name: str | RemoteObject) -> None:
        """Delete an object at the server.

        Raises:
            Unreachable: the server does not reply. UnknownObject: there is no such object.
        """
        unwanted = _object_name(name)
        self._retried(self._transfers.removal(partial(protocol.Delete, name=unwanted)))

    def objects(self) -> list[dict[str, Any]]:
        """Return the server's description of each object that this client has put."""
        return self._listed(protocol.Objects)

    # --- the server

    def status(self) -> Any:
        """Return the server's status; see docs/protocol.md."""
        return self._query("status")

    def stats(self) -> Any:
        """Return the server's statistics of this client."""
        return self._query("stats")

    def usage(self) -> Any:
        """Return this client's usage, by function."""
        return self._query("usage")

    def health(self, *, canary: bool = False) -> Any:
        """Return the server's health. canary: the server runs a kTask to find out."""
        return self._query("health", (b"canary",) if canary else ())

    def drain(self) -> Any:
        """Let the server refuse further requests; for administrators."""
        return self._query("drain")

    def pardon(self, function: KTask | str) -> bool:
        """Lift the quarantine of a function, and return True if it was in quarantine; for administrators.

        Args:
            function: the function's `key` in `status()["quarantined"]`, of any client; or a kTask, for all its
                functions.

        Raises:
            Unreachable: the server does not reply. InvalidRequest: this client is no administrator.
        """
        key = function.key if isinstance(function, KTask) else function
        pardoned: bool = self._query("pardon", (key.encode(),))["pardoned"]
        return pardoned

    def limits(self) -> protocol.Limits | None:
        """Return this client's limits at the server, or None before the first connection."""
        return self._calls.limits()

    def _query(self, what: str, frames: Sequence[bytes] = ()) -> Any:
        return self._request(lambda number: protocol.Ask(number, what), frames).answer

    def _listed(self, question: type[protocol.Functions] | type[protocol.Objects]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._request(question).entries
        return entries

    def _request(self, make: Callable[[int], Any], frames: Sequence[bytes] = ()) -> Any:
        return self._retried(lambda: self._transfers.ask(make, frames))

    def _retried(self, do: Callable[[], T]) -> T:
        """Return the result of an action, which is repeated for as long as its error allows another attempt."""
        try:
            return retried(self._patience_s, self._calls.stopped, _delay_s)(do)
        except TryAgain as again:
            raise again.error from None

    # --- its end

    def close(self) -> None:
        """End all calls without a reply with NotInitialized; those that have not begun do not run."""
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
        raise InvalidRequest("a kaas.Client and its functions are of this process only: make a client in each process")

    def __repr__(self) -> str:
        return f"<kaas.Client of {self._endpoint.address}>"


def _object_name(name: str | RemoteObject) -> str:
    if isinstance(name, RemoteObject):
        return name.name
    check_object_name(name)
    return name


def _delay_s(error: BaseException) -> float | None:
    if isinstance(error, MissingContent):  # the server removed content that it had before: send it again
        return 0.0
    return error.retry_s if isinstance(error, TryAgain) else None


def _curve_keys(
    address: str, keys: str | os.PathLike[str] | OwnKeys | None, server_key: str | None
) -> CurveKeys | None:
    if not isinstance(address, str) or not address.startswith("tcp://"):
        raise InvalidConfig(f'a server has an address such as "tcp://host:port", not {address!r}', field="address")
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
