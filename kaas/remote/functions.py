"""Functions that remote clients have registered: of each client its own, and registered again when a server starts.

A function counts as many bytes as its kTask with all its code has, which the pool keeps for its executors.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kaas.arguments import Buffer, Scalar
from kaas.errors import InvalidRequest, KaasError, UnexpectedInput, UnknownFunction
from kaas.graph import KTask
from kaas.library import Library
from kaas.pool import wire as pool_wire
from kaas.pool.functions import RegisteredFunction
from kaas.pool.objects import Held, HeldObjects
from kaas.pool.registry import Registry
from kaas.remote import wire
from kaas.remote.contents import LIBRARY, VALUE, Content, too_many
from kaas.remote.state import State
from kaas.remote.tasks import SentTask, decode_task
from kaas.remote.uploads import AT_ONCE_BYTES, Uploads, missing
from kaas.remote.values import NAME_BYTES, Values, shown
from kaas.request import check_fit

MOST_FUNCTIONS = 1024
"""Of one client."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_KEY = re.compile(r"[0-9a-f]{64}")
_FUNCTIONS = "remote functions"

_Arrays = dict[str, tuple[str, tuple[int, ...]]]


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """constants: a value's hash and dtype by buffer. key: by which the client knows it."""

    client: str
    name: str
    task: bytes
    constants: dict[str, tuple[str, str]]
    before: str
    after: str
    key: str = ""

    def keyed(self, task: KTask) -> _Kept:
        """With its key: that of its kTask, or of all that makes it."""
        if self.constants or self.before or self.after:
            parts = [task.key, sorted(self.constants.items()), self.before, self.after]
            return msgspec.structs.replace(self, key=hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest())
        return msgspec.structs.replace(self, key=task.key)


@dataclass(frozen=True, slots=True)
class RemoteFunction:
    """A function of a client's, ready to be invoked.

    Fields:
        name: "" for none. key: what the client knows it by; it differs by constants, unlike that of `function`.
        constants: the pool's object of all together. given: inputs that an invocation brings, in order. scalars: their
            kinds. iterations: the one that says how often the kernels run, "" for none. outputs: names.
        before, after: the server's cTasks around it.
    """

    name: str
    key: str
    function: RegisteredFunction = field(repr=False)
    constants: Held | None
    given: Mapping[str, Buffer] = field(repr=False)
    scalars: Mapping[str, str]
    iterations: str
    outputs: tuple[str, ...]
    before: str = ""
    after: str = ""

    @property
    def described(self) -> tuple[_Arrays, _Arrays, dict[str, str]]:
        """Its inputs, its outputs, its scalars, each by name."""
        inputs = {name: (buffer.dtype, buffer.shape) for name, buffer in self.given.items()}
        outputs = dict(zip(self.outputs, self.function.outputs, strict=True))
        return inputs, outputs, dict(self.scalars)


@dataclass(slots=True, eq=False)
class _Entry:
    """Fields:
    ready: or why it is not. contents: what must not give way. nbytes: that count.
    """

    kept: _Kept
    ready: RemoteFunction | KaasError
    contents: Sequence[Content]
    nbytes: int

    @property
    def handle(self) -> str:
        return self.kept.name or self.kept.key


class Functions:
    """Belongs to one event loop. A client is the name of a key."""

    def __init__(
        self,
        state: State,
        uploads: Uploads,
        values: Values,
        objects: HeldObjects,
        registry: Registry,
        steps: Collection[str] = (),
    ) -> None:
        """steps: names of cTasks that functions may have around them."""
        self._state = state
        self._uploads = uploads
        self._contents = uploads.contents
        self._values = values
        self._objects = objects
        self._registry = registry
        self._steps = steps
        self._clients: dict[str, dict[str, _Entry]] = {}
        self._named: dict[str, dict[str, RemoteFunction | KaasError]] = {}

    async def open(self) -> None:
        """Register again what was registered in an earlier life. What cannot be now, since its code is no longer
        allowed say, is kept and says so."""
        for data in self._state.read(_FUNCTIONS):
            kept = _decode(data)
            try:
                entry = await self._made(kept)
            except KaasError as error:
                entry = _Entry(kept, error, [], 0)
            self._add(entry)

    # --- looking up

    def named(self, client: str, function: str) -> RemoteFunction:
        """By name or key.

        Raises:
            UnknownFunction; KaasError: it was registered before the server started again, and could not be since.
        """
        try:
            found = self._named[client][function]
        except KeyError:
            raise UnknownFunction(
                f"this client has registered no function {shown(function)}", function=function[:NAME_BYTES]
            ) from None
        if isinstance(found, KaasError):
            raise found
        return found

    def list(self, client: str, message: wire.Functions) -> wire.Listed:
        return wire.Listed(message.number, [_described(entry) for entry in self._clients.get(client, {}).values()])

    # --- registering

    async def register(self, client: str, message: wire.Register, frame: bytes | memoryview) -> wire.Registered:
        """
        Raises:
            InvalidRequest, InvalidGraph, InvalidCode, MissingContent, UnknownObject, NotAllowed, QuotaExceeded
        """
        self._check(message)
        made = await self._uploads.unbroken(self._register(client, message, bytes(frame)))
        return wire.Registered(
            message.number,
            made.key,
            *made.described,
        )

    def _check(self, message: wire.Register) -> None:
        name = message.name
        if name and (not _NAME.fullmatch(name) or _KEY.fullmatch(name)):
            raise InvalidRequest(
                f"a function's name is 1 to 100 letters, digits, '_', '.' and '-', and no key: not {shown(name)}"
            )
        for step in filter(None, (message.before, message.after)):
            if step not in self._steps:
                raise InvalidRequest(f"this server has no cTask {shown(step)}")

    async def _register(self, client: str, message: wire.Register, task: bytes) -> RemoteFunction:
        async with self._values.turn(client):
            constants = {}
            for buffer, name in message.constants.items():
                stored = self._values.named(client, name)
                constants[buffer] = stored.content.hash, stored.dtype
            kept = _Kept(client, message.name, task, constants, message.before, message.after)
            entry = await self._made(kept)
            mine = self._clients.get(client, {})
            before = mine.get(entry.handle)
            try:
                if before is None and len(mine) >= MOST_FUNCTIONS:
                    raise too_many(client, "functions", MOST_FUNCTIONS, len(mine))
                self._state.put(_FUNCTIONS, client, entry.handle, msgspec.msgpack.encode(entry.kept))
            except KaasError:
                self._let_go(entry)
                raise
            self._add(entry)
            if before is not None:
                self._let_go(before)
            assert isinstance(entry.ready, RemoteFunction)
            return entry.ready

    async def _made(self, kept: _Kept) -> _Entry:
        """A function that is known to the pool, and what it needs, which does not give way from now on.

        Raises:
            KaasError
        """
        sent = await _away(len(kept.task), decode_task, kept.task)
        with ExitStack() as undo:
            contents = self._needed(kept, sent, undo)
            libraries = {each: await self._uploads.library(kept.client, each) for each in sent.libraries}
            task, data = await _away(len(kept.task) + _code_bytes(libraries), _built, sent, libraries)
            bindings, constants = await self._bound(kept, task)
            self._contents.charge(kept.client, LIBRARY, len(data))
            undo.callback(self._contents.refund, kept.client, LIBRARY, len(data))
            known = self._registry.lend(pool_wire.FunctionSpec(task.key, bindings, kept.client), task, data)
            undo.pop_all()
        kept = kept.keyed(task)
        bound = {binding.buffer for binding in bindings}
        ready = RemoteFunction(
            name=kept.name,
            key=kept.key,
            function=known,
            constants=constants,
            given={buffer.name: buffer for buffer in task.inputs if buffer.name not in bound},
            scalars=dict(task.scalars),
            iterations=task.iterations.name if isinstance(task.iterations, Scalar) else "",
            outputs=tuple(buffer.name for buffer in task.outputs),
            before=kept.before,
            after=kept.after,
        )
        return _Entry(kept, ready, contents, len(data))

    def _needed(self, kept: _Kept, sent: SentTask, undo: ExitStack) -> Sequence[Content]:
        """What it needs, used once more, unless undone.

        Raises:
            MissingContent
        """
        wanted = [(each, LIBRARY) for each in sent.libraries]
        wanted += [(each, VALUE) for each in dict.fromkeys(sha256 for sha256, _ in kept.constants.values())]
        found = [self._contents.complete(kept.client, *each) for each in wanted]
        contents = [content for content in found if content is not None]
        if len(contents) < len(wanted):
            raise missing(*(each for (each, _), content in zip(wanted, found, strict=True) if content is None))
        for content in contents:
            content.uses += 1
            undo.callback(self._contents.release, content)
        return contents

    async def _bound(self, kept: _Kept, task: KTask) -> tuple[tuple[pool_wire.Binding, ...], Held | None]:
        """
        Raises:
            UnexpectedInput, WrongDtype, WrongSize, MissingContent
        """
        inputs = {buffer.name: buffer for buffer in task.inputs}
        entries: dict[str, int] = {}
        bindings = []
        parts = []
        for name, (sha256, dtype) in sorted(kept.constants.items()):
            if name not in inputs:
                raise UnexpectedInput(
                    f"kTask {task.label!r} has no input {shown(name)}",
                    task=task.label,
                    buffer=name[:NAME_BYTES],
                    near=(),
                )
            content = self._contents.complete(kept.client, sha256, VALUE)
            assert content is not None, "it is needed, and does not give way"
            check_fit(inputs[name], content.nbytes, dtype, None)
            if sha256 not in entries:
                entries[sha256] = len(entries)
                held = await self._values.held(content)
                if held is None:
                    raise missing(sha256)
                parts.append(held)
            bindings.append(pool_wire.Binding(name, entries[sha256]))
        return tuple(bindings), self._objects.together(parts) if parts else None

    # --- coming and going

    def _add(self, entry: _Entry) -> None:
        client = entry.kept.client
        self._clients.setdefault(client, {})[entry.handle] = entry
        self._look_up(client)

    def _look_up(self, client: str) -> None:
        """Names and keys anew."""
        found = self._named[client] = {}
        for entry in self._clients[client].values():
            found[entry.kept.key] = entry.ready
        for handle, entry in self._clients[client].items():
            found[handle] = entry.ready

    def _let_go(self, entry: _Entry) -> None:
        """It is needed no more but for requests that run."""
        for content in entry.contents:
            self._contents.release(content)
        if isinstance(entry.ready, RemoteFunction):
            self._registry.give_back(entry.ready.function.key)
            self._contents.refund(entry.kept.client, LIBRARY, entry.nbytes)

    async def unregister(self, client: str, message: wire.Unregister) -> wire.Done:
        """By name, or all of a key.

        Raises:
            UnknownFunction
        """
        await self._uploads.unbroken(self._unregister(client, message.function))
        return wire.Done(message.number)

    async def _unregister(self, client: str, function: str) -> None:
        async with self._values.turn(client):
            mine = self._clients.get(client, {})
            going = [mine[function]] if function in mine else []
            going += [entry for entry in mine.values() if entry.kept.key == function and entry not in going]
            if not going:
                self.named(client, function)
            for entry in going:
                self._state.remove(_FUNCTIONS, client, entry.handle)
                del mine[entry.handle]
                self._let_go(entry)
            self._look_up(client)


def _code_bytes(libraries: Mapping[str, Library]) -> int:
    return sum(library.nbytes for library in libraries.values())


def _built(sent: SentTask, libraries: Mapping[str, Library]) -> tuple[KTask, bytes]:
    task = sent.built(libraries)
    return task, task.to_msgpack()


async def _away(nbytes: int, work: Any, *args: Any) -> Any:
    """Done by another thread if it is about many bytes."""
    return work(*args) if nbytes <= AT_ONCE_BYTES else await asyncio.to_thread(work, *args)


def _described(entry: _Entry) -> dict[str, Any]:
    kept, ready = entry.kept, entry.ready
    known: dict[str, Any] = {
        "name": kept.name,
        "function": kept.key,
        "constants": {buffer: sha256 for buffer, (sha256, _) in kept.constants.items()},
        "before": kept.before,
        "after": kept.after,
    }
    if isinstance(ready, KaasError):
        return known | {"error": ready.message}
    return known | {
        "task": ready.function.spec.task_key,
        "label": ready.function.label,
        **dict(zip(("inputs", "outputs", "scalars"), ready.described, strict=True)),
        "bytes": entry.nbytes,
    }


_decode = msgspec.msgpack.Decoder(_Kept).decode
