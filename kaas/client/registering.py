"""Registers functions and stores values at a server: uploads only missing contents, in the order of their use."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kaas.client.remote_function import RemoteObject, RemoteTask
from kaas.client.transfers import OnProgress, Transfers, UploadContent
from kaas.errors import InvalidRequest, NotAllowed, UnknownFunction
from kaas.executor.device.host_arrays import on_host
from kaas.ktask.arguments import Buffer
from kaas.ktask.graph import KTask
from kaas.ktask.images import PROVIDED
from kaas.ktask.library import Library
from kaas.ktask.request import View, check_constants, input_bytes, mapping
from kaas.models.model import CompiledModel
from kaas.wire import protocol
from kaas.wire.sent_ktasks import encode_library, encode_task

CONSTANT = "constant-"
"""Prefix of the name of a constant's object; the constant's hash follows."""


@dataclass(frozen=True, slots=True)
class _Constant:
    object: RemoteObject
    content: UploadContent


class Registering:
    """Registers functions and stores values. signatures: of kTasks, by key.

    The methods may raise TryAgain; the caller may then repeat them from the start.
    """

    def __init__(self, transfers: Transfers, signatures: Mapping[str, bytes]) -> None:
        self._transfers = transfers
        self._signatures = signatures
        self._ask = transfers.ask

    def task(
        self,
        task: KTask,
        constants: Mapping[str, Any] | None,
        name: str,
        around: tuple[str, str],
        progress: OnProgress | None,
    ) -> RemoteTask:
        """Register a kTask; raise KaasError if the server refuses it."""
        constants = mapping(task, "constants", constants)
        check_constants(task, constants)
        buffers = {buffer.name: buffer for buffer in task.inputs}
        names: dict[str, str] = {}
        own: list[_Constant] = []
        for buffer_name, value in constants.items():
            found = _constant(buffers[buffer_name], value)
            if isinstance(found, _Constant):
                own.append(found)
                found = found.object
            names[buffer_name] = found.name
        self._upload_missing([task], own, progress)
        registered = self._register(task, name, names, around)
        return RemoteTask.of(registered, name or task.label, task.iterations, around=around)

    def model(self, model: CompiledModel, name: str, progress: OnProgress | None) -> tuple[RemoteTask, ...]:
        """Register the variants of a model; raise KaasError if the server refuses one."""
        read = {buffer.name: buffer for variant in model.variants for buffer in variant.constants}
        own: dict[str, _Constant] = {}
        for buffer_name, buffer in read.items():
            found = _constant(buffer, model.constants[buffer_name])
            assert isinstance(found, _Constant), "a model's constants are arrays"
            own[buffer_name] = found
        self._upload_missing([variant.task for variant in model.variants], list(own.values()), progress)
        only = len(model.variants) == 1
        tasks = []
        for variant in model.variants:
            names = {buffer.name: own[buffer.name].object.name for buffer in variant.constants}
            registered = self._register(variant.task, name if only else "", names, ("", ""))
            tasks.append(RemoteTask.of(registered, name or model.name, inputs=variant.inputs))
        return tuple(tasks)

    def _register(
        self, task: KTask, name: str, constants: dict[str, str], around: tuple[str, str]
    ) -> protocol.Registered:
        signature = self._signatures.get(task.key, b"")
        registered: protocol.Registered = self._ask(
            lambda number: protocol.Register(number, name, constants, *around, signature), (encode_task(task),)
        )
        return registered

    def known(self, name: str) -> RemoteTask:
        """Return a function that is registered at the server, by name or key.

        Raises:
            UnknownFunction: there is no such function, or its code is not allowed any more.
        """
        entries = self._ask(protocol.Functions).entries
        for entry in entries:
            if name in (entry["name"], entry["function"]):
                if "error" in entry:  # for example because its code is not allowed any more
                    raise UnknownFunction(f"function {name!r} cannot be called: {entry['error']}", function=name)
                registered = protocol.Registered(
                    0, entry["function"], entry["inputs"], entry["outputs"], entry.get("scalars", {})
                )
                around = entry["before"], entry["after"]
                return RemoteTask.of(registered, entry["name"] or entry["function"], around=around)
        near = difflib.get_close_matches(str(name), [entry["name"] for entry in entries if entry["name"]], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownFunction(f"this client has registered no function {name!r}{hint}", function=name)

    def put(self, made: RemoteObject, content: UploadContent, progress: OnProgress | None) -> None:
        """Upload a value as an object.

        Raises:
            KaasError: the server refuses the value.
        """
        if content.large:
            self._transfers.upload([content], progress)
        self._ask(*_put(made, content))

    def _code(self, library: Library) -> UploadContent:
        data = memoryview(encode_library(library))
        return UploadContent(library.hash, data, "library")

    def _upload_missing(
        self, tasks: Sequence[KTask], constants: Sequence[_Constant], progress: OnProgress | None
    ) -> None:
        """Upload the code and constants that the server does not have."""
        libraries = dict.fromkeys(library for task in tasks for library in task.libraries)
        contents = [self._code(library) for library in libraries]
        missing = []
        if constants:
            stored = {entry["name"] for entry in self._ask(protocol.Objects).entries}
            by_name = {constant.object.name: constant for constant in constants}
            missing = [constant for name, constant in by_name.items() if name not in stored]
        large = [constant.content for constant in missing if constant.content.large]
        try:
            self._transfers.upload([*contents, *large], progress)
        except NotAllowed as error:
            with_keys = _with_keys(error, tasks)
            if with_keys is None:
                raise
            raise with_keys from error
        # a model has hundreds, and the network's delay is not to count for each
        self._transfers.ask_all(_put(constant.object, constant.content) for constant in missing)


def _put(made: RemoteObject, content: UploadContent) -> tuple[Callable[[int], protocol.Put], Sequence[memoryview]]:
    """Return a request that makes an object of its frame, or of a large content that the server has; and the frame."""
    digest, frames = (content.hash, ()) if content.large else ("", (content.data,))
    return lambda number: protocol.Put(number, made.name, made.dtype or "uint8", made.shape, digest), frames


def _with_keys(error: NotAllowed, tasks: Sequence[KTask]) -> NotAllowed | None:
    """Return the error with the keys that the operator lists for these kTasks, or None if they would not help.

    A server whose operator lists no kTask refuses a library before it receives a kTask.
    """
    library_hash = error.fields.get("library")
    refused = [
        task
        for task in tasks
        for library in task.libraries
        if library.hash == library_hash and all(image.kind != PROVIDED for image in library.images)
    ]
    if "task" in error.fields or not refused:
        return None
    keys = "; ".join(f"the key of kTask {task.label!r} is {task.key}" for task in refused)
    message = f"{error.message}: {keys}. The operator lists that under code.hashes"
    return NotAllowed(message, library=library_hash, task=refused[0].key)


def _constant(buffer: Buffer, value: Any) -> _Constant | RemoteObject:
    """Return the constant of a buffer: an object at the server, or content for an object that is named by its hash.

    Raises:
        InvalidRequest: the value does not fit the buffer.
    """
    if isinstance(value, RemoteObject):
        value.check_fit(buffer, None)
        return value
    if isinstance(value, View) and isinstance(value.source, RemoteObject):
        raise InvalidRequest(
            f"constant {buffer.name!r} must be a whole object at the server, not a View", buffer=buffer.name
        )
    content = UploadContent.value(input_bytes(buffer, on_host(buffer.name, value)))
    return _Constant(RemoteObject(CONSTANT + content.hash, buffer.dtype, buffer.shape), content)
