"""Turns a remote client's registration into a function of the pool: finds its libraries and binds its constants."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from kaas.errors import KaasError, QuotaExceeded, UnexpectedInput
from kaas.ktask.library import Library
from kaas.ktask.request import check_fit
from kaas.pool.functions import Registry
from kaas.pool.on_processes.objects import HeldObject, HeldObjects
from kaas.server.building.building import Builder, Facts, NotBuilt
from kaas.server.building.invocable_function import InvocableFunction, label_of
from kaas.server.building.uploads import AT_ONCE_BYTES, Uploads, missing
from kaas.server.replies import message_of
from kaas.server.state.blob_store import LIBRARY, VALUE, Blob
from kaas.server.state.object_store import ObjectStore, shown
from kaas.server.usage.quotas import Window
from kaas.wire import specs
from kaas.wire.sent_ktasks import NAME_BYTES, SentTask, decode_task, with_code


class FunctionRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a function on disk. constants: a value's hash and dtype by buffer. key: identifies it for the client.
    signature: of its kTask. facts: None if an earlier version has stored it; then it is built once more."""

    client: str
    name: str
    task: bytes
    constants: dict[str, tuple[str, str]]
    before: str
    after: str
    key: str = ""
    signature: bytes = b""
    facts: Facts | None = None

    def asks_for(self, other: FunctionRow) -> bool:
        """Return True if `other`, which has no key yet, is the same function."""
        return msgspec.structs.replace(self, key="", facts=None) == other

    def keyed(self, facts: Facts, task: bytes) -> FunctionRow:
        """Return it with its key: the kTask's key, or a hash of all its parts. task: encoded anew, without further data
        that the client may have sent, which would not be counted."""
        key = facts.key
        if self.constants or self.before or self.after:
            parts = [key, sorted(self.constants.items()), self.before, self.after]
            key = hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()
        return msgspec.structs.replace(self, task=task, key=key, facts=facts)


@dataclass(slots=True, eq=False)
class ClientFunction:
    """A registered function of a client.

    Fields:
        ready: the function, or the error of its registration. blobs: the uploads that it uses. nbytes: that count for
            the quota. listed: its description, encoded once: clients may list a thousand functions often.
    """

    row: FunctionRow
    ready: InvocableFunction | KaasError
    blobs: Sequence[Blob]
    nbytes: int
    listed: msgspec.Raw = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.listed = msgspec.Raw(msgspec.msgpack.encode(self._described()))

    def _described(self) -> dict[str, Any]:
        row, ready = self.row, self.ready
        known: dict[str, Any] = {
            "name": row.name,
            "function": row.key,
            "constants": {buffer: sha256 for buffer, (sha256, _) in row.constants.items()},
            "before": row.before,
            "after": row.after,
        }
        if isinstance(ready, KaasError):
            return known | {"error": message_of(ready)}
        return known | {
            "task": ready.function.spec.task_key,
            "label": ready.function.label,
            **dict(zip(("inputs", "outputs", "scalars"), ready.described, strict=True)),
            "bytes": self.nbytes,
        }

    @property
    def handle(self) -> str:
        """Its name, or its key if it has none."""
        return self.row.name or self.row.key

    @property
    def kernels(self) -> int:
        """The number of kernels that counts for the quota."""
        return 0 if self.row.facts is None else self.row.facts.kernels


class FunctionBuilder:
    """Builds functions. Use an object of this class from one event loop only."""

    def __init__(self, uploads: Uploads, object_store: ObjectStore, objects: HeldObjects, registry: Registry) -> None:
        self._uploads = uploads
        self._blobs = uploads.blobs
        self._object_store = object_store
        self._objects = objects
        self._registry = registry
        self._builder = Builder()
        self._used: dict[str, Window] = {}  # processor time of building, by client

    def close(self) -> None:
        """End the building of kTasks."""
        self._builder.close()

    async def restored(self, row: FunctionRow, known: dict[tuple[str, str], Library]) -> ClientFunction:
        """Return a function of an earlier epoch, like `made`, but unchecked if its facts are stored.

        Raises:
            KaasError
        """
        if row.facts is not None:
            return await self._made(row, row.facts.libraries, known, None)
        sent = await _away(len(row.task), decode_task, row.task)
        return await self._made(row, sent.libraries, known, sent)

    async def made(self, row: FunctionRow, others_kernels: int) -> ClientFunction:
        """Register a function with the pool. Its uploads are in use from now on. others_kernels: number of kernels of
        its client's other functions.

        Raises:
            KaasError
        """
        sent = await _away(len(row.task), decode_task, row.task)
        self._check_kernels(row.client, sent.kernels, others_kernels)
        self._check_used(row.client)
        return await self._made(row, sent.libraries, {}, sent)

    async def _made(
        self,
        row: FunctionRow,
        needed: Sequence[str],
        known: dict[tuple[str, str], Library],
        sent: SentTask | None,
    ) -> ClientFunction:
        """Register a function. needed: hashes of its libraries. known: libraries by client and hash; its own ones are
        added. sent: the kTask to build, None if its facts are known."""
        with ExitStack() as undo:
            blobs = self._needed(row, needed, undo)
            for each in needed:
                if (row.client, each) not in known:
                    known[row.client, each] = await self._uploads.library(row.client, each)
            libraries = {each: known[row.client, each] for each in needed}
            if sent is not None:
                files = {blob.hash: blob.path for blob in blobs if blob.kind == LIBRARY}
                row = await self._built(row, sent, libraries, files)
            task = row.facts
            assert task is not None, "they are stored, or were made by building"
            self._uploads.allowed.check_task(task, libraries.values(), row.signature)
            in_order = {each: libraries[each] for each in task.libraries}
            data = await _away(len(row.task) + _code_bytes(libraries), with_code, row.task, in_order)
            bindings, constants = await self._bound(row, task)
            self._blobs.charge(row.client, LIBRARY, len(data))
            undo.callback(self._blobs.refund, row.client, LIBRARY, len(data))
            label = label_of(row.name, row.key, task.label, constants)
            function = self._registry.lend(specs.FunctionSpec(task.key, bindings, row.client), task, data, label)
            undo.pop_all()
        bound = {binding.buffer for binding in bindings}
        ready = InvocableFunction(
            name=row.name,
            key=row.key,
            function=function,
            constants=constants,
            given={buffer.name: buffer for buffer in task.inputs if buffer.name not in bound},
            scalars=task.scalars,
            iterations=task.iterations,
            outputs=tuple(buffer.name for buffer in task.outputs),
            before=row.before,
            after=row.after,
        )
        return ClientFunction(row, ready, blobs, len(data))

    async def _built(
        self, row: FunctionRow, sent: SentTask, libraries: Mapping[str, Library], files: Mapping[str, Path]
    ) -> FunctionRow:
        """Return the function with its facts. The client's quota is charged for the time, also of a failed build.

        Raises:
            KaasError
        """
        used = self._used.setdefault(row.client, Window())
        try:
            built = await self._builder.built(row.client, sent, libraries, files)
        except NotBuilt as error:
            used.add(monotonic(), int(error.used_s * 1e9))
            raise error.cause from error
        used.add(monotonic(), int(built.used_s * 1e9))
        return row.keyed(built.facts, built.task)

    def _check_kernels(self, client: str, kernels: int, others_kernels: int) -> None:
        """Check the quotas of kernels.

        Raises:
            QuotaExceeded
        """
        limits = self._uploads.limits(client)
        quotas = (("task_kernels", limits.task_kernels, 0), ("kernels", limits.kernels, others_kernels))
        for quota, limit, used in quotas:
            if limit is not None and used + kernels > limit:
                has = f" and has {used}" if used else ""
                message = f"{client!r} may have {quota} of {limit}{has}, and this kTask has {kernels} kernels"
                raise QuotaExceeded(message, client=client, quota=quota, limit=limit, used=used, needed=kernels)

    def _check_used(self, client: str) -> None:
        """Check the quota of build time.

        Raises:
            QuotaExceeded
        """
        limit, used, now_s = self._uploads.limits(client).build_s_per_minute, self._used.get(client), monotonic()
        if limit is None or used is None or not (wait_s := used.below(now_s, limit * 1e9)):
            return
        used_s = used.total(now_s) / 1e9
        message = f"{client!r} may have build_s_per_minute of {limit:g}, and building its kTasks took {used_s:.3g} s"
        again = {} if wait_s == inf else {"retry_s": wait_s}
        raise QuotaExceeded(message, client=client, quota="build_s_per_minute", limit=limit, used=used_s, **again)

    def _needed(self, row: FunctionRow, libraries: Sequence[str], undo: ExitStack) -> Sequence[Blob]:
        """Return the uploads that it needs and count a use of each, until `undo`. libraries: their hashes.

        Raises:
            MissingContent
        """
        wanted = [(each, LIBRARY) for each in libraries]
        wanted += [(each, VALUE) for each in dict.fromkeys(sha256 for sha256, _ in row.constants.values())]
        found = [self._blobs.complete(row.client, *each) for each in wanted]
        blobs = [blob for blob in found if blob is not None]
        if len(blobs) < len(wanted):
            raise missing(*(each for (each, _), blob in zip(wanted, found, strict=True) if blob is None))
        for blob in blobs:
            blob.uses += 1
            undo.callback(self._blobs.release, blob)
        return blobs

    async def _bound(self, row: FunctionRow, task: Facts) -> tuple[tuple[specs.Binding, ...], HeldObject | None]:
        """Return the bindings of the constants, and the pool's object of them all.

        Raises:
            UnexpectedInput, WrongDtype, WrongSize, MissingContent
        """
        inputs = {buffer.name: buffer for buffer in task.inputs}
        entries: dict[str, int] = {}
        bindings = []
        parts = []
        for name, (sha256, dtype) in sorted(row.constants.items()):
            if name not in inputs:
                raise UnexpectedInput(
                    f"kTask {task.label!r} has no input {shown(name)}",
                    task=task.label,
                    buffer=name[:NAME_BYTES],
                    near=(),
                )
            content = self._blobs.complete(row.client, sha256, VALUE)
            assert content is not None, "it is in use, and thus not removed"
            check_fit(inputs[name], content.nbytes, dtype, None)
            if sha256 not in entries:
                entries[sha256] = len(entries)
                held = await self._object_store.held(content)
                if held is None:
                    raise missing(sha256)
                parts.append(held)
            bindings.append(specs.Binding(name, entries[sha256]))
        return tuple(bindings), self._objects.together(parts) if parts else None

    def let_go(self, entry: ClientFunction) -> None:
        """Release a function. Requests in flight still use it."""
        for blob in entry.blobs:
            self._blobs.release(blob)
        if isinstance(entry.ready, InvocableFunction):
            self._registry.give_back(entry.ready.function.key, entry.ready.label)
            self._blobs.refund(entry.row.client, LIBRARY, entry.nbytes)


def _code_bytes(libraries: Mapping[str, Library]) -> int:
    return sum(library.nbytes for library in libraries.values())


async def _away(nbytes: int, work: Any, *args: Any) -> Any:
    """Call a function, in another thread if it handles many bytes."""
    return work(*args) if nbytes <= AT_ONCE_BYTES else await asyncio.to_thread(work, *args)
